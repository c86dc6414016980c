"""Answers of a rate limit service."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict

from ._check import Check, Unit
from ._errors import OverrideNotApplied
from ._generated import rls_pb2


class Code(IntEnum):
    """The decision for a descriptor. The values are the numbers of Envoy's API."""

    UNKNOWN = 0
    """No code, or a code of a later API."""
    OK = 1
    """Within the limit."""
    OVER_LIMIT = 2
    """Over the limit."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The limit that applied to a descriptor."""

    name: str
    """Name of the limit; empty if it has none."""
    requests_per_unit: int
    """Requests per window."""
    unit: Unit | None
    """Unit of the window; `None` if it is not known here."""
    unit_multiplier: int
    """Units per window."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """The decision for one descriptor."""

    code: Code
    """Whether the descriptor is within its limit."""
    limit: Limit | None
    """The limit; `None` if none applied."""
    remaining: int
    """Hits that the counter can still admit."""
    reset_after: float | None
    """Seconds until the reset, or if the limit is exceeded, until the same hits can pass."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """An HTTP header."""

    name: str
    """The name, as the service sent it."""
    value: bytes
    """The value."""

    @property
    def retry_after_seconds(self) -> int | None:
        """The seconds, if this is `Retry-After` with a number."""
        is_number = self.name.lower() == "retry-after" and re.fullmatch(rb"[0-9]{1,9}", self.value)
        return int(self.value) if is_number else None

    @property
    def retry_after_milliseconds(self) -> int | None:
        """The milliseconds, if this is `Retry-After-Ms` with a number."""
        is_number = self.name.lower() == "retry-after-ms" and re.fullmatch(rb"[0-9]{1,12}", self.value)
        return int(self.value) if is_number else None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to a `Check`."""

    allowed: bool
    """Whether the request may pass. Unknown codes count as allowed, as in Envoy."""
    statuses: tuple[Status, ...]
    """One for each descriptor of the check, in order; empty if the service shed the request."""
    retry_after: float | None
    """Seconds after which the same request can pass, if the service reported a time."""
    response_headers_to_add: tuple[Header, ...]
    """Headers for the response to the client."""
    request_headers_to_add: tuple[Header, ...]
    """Headers to add to the request, if it is allowed."""
    raw_body: bytes
    """Body for the response to a refused client; empty if the service sent none."""
    dynamic_metadata: Mapping[str, Any]
    """Data of the decision, if the service sends it (`--dynamic-metadata`), else empty."""

    @property
    def pause(self) -> float | None:
        """Seconds for a waiter to pause: `retry_after`, which services round up to whole seconds, or the exact time.

        Sluicegate sends the exact time in the header `Retry-After-Ms`, from which `retry_after` is then taken, or in
        `dynamic_metadata`.
        """
        if any(it.retry_after_milliseconds is not None for it in self.response_headers_to_add):
            return self.retry_after
        exact = max(_exact_waits(self.dynamic_metadata), default=math.inf)
        is_same = self.retry_after is not None and self.retry_after - 1 <= exact <= self.retry_after
        return exact if is_same else self.retry_after


_CODES: dict[int, Code] = {code.value: code for code in Code}
_UNITS: dict[int, Unit] = {unit.value: unit for unit in Unit}


def verdict_of(check: Check, answer: rls_pb2.RateLimitResponse) -> Verdict:
    """The verdict in an answer. Raises `OverrideNotApplied`."""
    allowed = int(answer.overall_code) != Code.OVER_LIMIT
    statuses = tuple(_status(it) for it in answer.statuses)
    if allowed:
        for index, descriptor in enumerate(check.descriptors):
            if descriptor.limit is not None and not _applied(statuses[index : index + 1]):
                raise OverrideNotApplied(f"the override was not applied: is there a domain {check.domain!r}?")
    response_headers = _headers(answer.response_headers_to_add)
    return Verdict(
        allowed=allowed,
        statuses=statuses,
        retry_after=_retry_after(response_headers, statuses),
        response_headers_to_add=response_headers,
        request_headers_to_add=_headers(answer.request_headers_to_add),
        raw_body=answer.raw_body,
        dynamic_metadata=MessageToDict(answer.dynamic_metadata) if answer.HasField("dynamic_metadata") else {},
    )


def _applied(status: tuple[Status, ...]) -> bool:
    return any(it.limit is not None or it.code is Code.OVER_LIMIT for it in status)


def _status(message: rls_pb2.RateLimitResponse.DescriptorStatus) -> Status:
    return Status(
        code=_CODES.get(message.code, Code.UNKNOWN),
        limit=_limit(message.current_limit) if message.HasField("current_limit") else None,
        remaining=message.limit_remaining,
        reset_after=_seconds(message.duration_until_reset) if message.HasField("duration_until_reset") else None,
    )


def _limit(message: rls_pb2.RateLimitResponse.RateLimit) -> Limit:
    return Limit(
        name=message.name,
        requests_per_unit=message.requests_per_unit,
        unit=_UNITS.get(message.unit),
        unit_multiplier=message.unit_multiplier.value if message.HasField("unit_multiplier") else 1,
    )


def _seconds(duration: Duration) -> float | None:
    seconds = duration.seconds + duration.nanos / 1e9
    # A negative time counts as none.
    return seconds if seconds >= 0 else None


def _headers(messages: Iterable[rls_pb2.RateLimitResponse.HeaderValue]) -> tuple[Header, ...]:
    return tuple(Header(name=it.key, value=it.value.encode() or it.raw_value) for it in messages)


def _exact_waits(metadata: Mapping[str, Any]) -> Iterator[float]:
    # Another service may send anything here.
    descriptors = metadata.get("descriptors")
    for descriptor in descriptors if isinstance(descriptors, list) else []:
        if isinstance(descriptor, dict) and descriptor.get("code") == "OVER_LIMIT":
            limits = descriptor.get("limits")
            for limit in limits if isinstance(limits, list) else []:
                if isinstance(limit, dict) and isinstance(limit.get("retryAfter"), (int, float)):
                    yield limit["retryAfter"]


def _retry_after(headers: tuple[Header, ...], statuses: tuple[Status, ...]) -> float | None:
    for header in headers:
        if (milliseconds := header.retry_after_milliseconds) is not None:
            return milliseconds / 1000
    for header in headers:
        if (seconds := header.retry_after_seconds) is not None:
            return float(seconds)
    resets = [it.reset_after for it in statuses if it.code is Code.OVER_LIMIT and it.reset_after is not None]
    return max(resets, default=None)
