"""Errors, by what a caller can do about them."""

from __future__ import annotations

from typing import Literal, TypeAlias

import grpc

ErrorKind: TypeAlias = Literal["deadline_exceeded", "unavailable", "other", "override_not_applied"]
"""Kinds of `CheckError`."""


class SluicegateError(Exception):
    """Base of all errors of this package."""


class CheckError(SluicegateError):
    """There is no verdict. The call is not retried, because it may have been counted."""

    kind: ErrorKind = "other"
    """What happened."""


class DeadlineExceeded(CheckError):
    """The service did not answer within the timeout."""

    kind: ErrorKind = "deadline_exceeded"


class Unavailable(CheckError):
    """The service cannot be reached, or the connection broke."""

    kind: ErrorKind = "unavailable"


class CallFailed(CheckError):
    """The service answered with another gRPC status, such as INVALID_ARGUMENT."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        """The status code."""


class OverrideNotApplied(CheckError):
    """The service let the request pass without applying its override: it does not know the domain."""

    kind: ErrorKind = "override_not_applied"


class WaitExceeded(SluicegateError):
    """The request cannot pass within the `max_wait` of the caller. It was charged nowhere."""


class PacerClosed(SluicegateError):
    """The pacer was closed before the job could start. The job did not run, and was charged nowhere."""


def check_error(error: grpc.RpcError) -> CheckError:
    """The error of a failed call."""
    code: grpc.StatusCode = error.code()
    details: str = error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(details)
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unavailable(details)
    return CallFailed(code, details)
