"""Parts that the middleware for ASGI and WSGI share."""

from __future__ import annotations

import ipaddress
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Generic, Literal, TypeAlias, TypeVar

from ._check import Check, Descriptor
from ._errors import CheckError
from ._verdict import Header, Verdict

logger = logging.getLogger("sluicegate")

FailureMode: TypeAlias = Literal["open", "closed"]
"""Behaviour without a verdict: `open` lets the request pass without a limit, `closed` answers 503."""

Descriptors: TypeAlias = "Sequence[Descriptor | Mapping[str, str]]"
"""Descriptors of a request. Empty: the request is not limited."""

BODY_MAX = 64 * 1024
"""Bytes of the longest body that a field is read from."""


class BaseRequest:
    """The values of a request that functions of a middleware can read."""

    def __init__(
        self, method: str, path: str, headers: list[tuple[str, str]], peer: str | None, user: str | None
    ) -> None:
        self.method = method
        """The HTTP method, in upper case."""
        self.path = path
        """The path, percent-decoded, without the query."""
        self.peer = peer
        """IP address of the connection's other end; `None` if it has none (unix socket)."""
        self.user = user
        """The authenticated user; `None` if the framework knows none at this place."""
        self._headers = headers

    def header(self, name: str) -> str | None:
        """The value of a header, such as an API key; `None` if it is absent. Several values are joined by commas."""
        values = [value for key, value in self._headers if key == name.lower()]
        return ", ".join(values) if values else None

    def client_ip(self, *, trusted_proxies: int) -> str:
        """IP address of the client, behind this number of proxies that you trust.

        With 0 it is the address of the connection. With n it is the n-th address from the right of `X-Forwarded-For`:
        clients can forge those further left. Without a valid address there, it is that of the connection.
        Empty if there is none at all (unix socket).
        """
        addresses = (self.header("x-forwarded-for") or "").split(",")
        if 0 < trusted_proxies <= len(addresses):
            forwarded = _address(addresses[-trusted_proxies])
            if forwarded is not None:
                return forwarded
        return _address(self.peer or "") or ""


def _address(text: str) -> str | None:
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def json_field(body: bytes | None, name: str) -> str:
    """A text field of a JSON object; empty if there is none."""
    try:
        value = json.loads(body or b"")
    except (ValueError, RecursionError):
        return ""
    field = value.get(name) if isinstance(value, dict) else None
    return field if isinstance(field, str) else ""


class FailureLog:
    """Logs the first of several failures in a row."""

    def __init__(self, mode: FailureMode) -> None:
        if mode not in ("open", "closed"):
            raise ValueError(f"failure_mode must be 'open' or 'closed', not {mode!r}")
        self._mode = mode
        self._failing = False

    def succeeded(self) -> None:
        """Notes a verdict."""
        self._failing = False

    def failed(self, error: CheckError) -> None:
        """Notes a failed check."""
        if not self._failing:
            self._failing = True
            logger.warning("rate limit check failed, applying failure mode %s: %s: %s", self._mode, error.kind, error)


RequestT = TypeVar("RequestT")
ClientT = TypeVar("ClientT")
DescriptorsT = TypeVar("DescriptorsT")
AppT = TypeVar("AppT")


class BaseMiddleware(Generic[RequestT, ClientT, DescriptorsT, AppT]):
    """Options and checks of a middleware, for its types of requests, clients, descriptors and applications."""

    def __init__(
        self,
        app: AppT,
        *,
        client: ClientT,
        domain: str,
        descriptors: Callable[[RequestT], DescriptorsT],
        hits: Callable[[RequestT], int] | None = None,
        failure_mode: FailureMode = "open",
        timeout: float | None = None,
        skip: Callable[[RequestT], bool] | None = None,
        on_limited: Callable[[RequestT, Verdict], AppT | None] | None = None,
    ) -> None:
        self._app = app
        self._client = client
        self._domain = domain
        self._descriptors = descriptors
        self._hits = hits
        self._failure_mode = failure_mode
        self._failures = FailureLog(failure_mode)
        self._timeout = timeout
        self._skip = skip
        self._on_limited = on_limited

    def _is_skipped(self, request: RequestT) -> bool:
        return self._skip is not None and self._skip(request)

    def _check_of(self, request: RequestT, descriptors: Descriptors) -> Check:
        return Check(self._domain, descriptors, hits=1 if self._hits is None else self._hits(request))

    def _answer_of_application(self, request: RequestT, verdict: Verdict) -> AppT | None:
        return None if self._on_limited is None else self._on_limited(request, verdict)


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    """An answer of the middleware itself."""

    status: HTTPStatus
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def all_headers(self) -> list[tuple[str, str]]:
        """The headers with the length of the body."""
        return [*self.headers, ("content-length", str(len(self.body)))]


def added_headers(headers: Sequence[Header]) -> list[tuple[str, str]]:
    """Headers of the service as text, names in lower case."""
    return [(it.name.lower(), it.value.decode("latin-1")) for it in headers]


def refusal_headers(verdict: Verdict) -> list[tuple[str, str]]:
    """Headers that every answer to a refused request has: those of the service, and `Retry-After`."""
    headers = [it for it in added_headers(verdict.response_headers_to_add) if it[0] != "content-type"]
    if verdict.retry_after is not None and all(name != "retry-after" for name, _ in headers):
        headers.append(("retry-after", str(_seconds(verdict))))
    return headers


def _seconds(verdict: Verdict) -> int | None:
    """The whole seconds of `retry_after`: as the service sent them, else rounded up to at least 1."""
    if verdict.retry_after is None:
        return None
    for header in verdict.response_headers_to_add:
        if (seconds := header.retry_after_seconds) is not None:
            return seconds
    return max(1, math.ceil(verdict.retry_after))


def refusal(verdict: Verdict) -> HttpAnswer:
    """The answer to a refused request."""
    headers = refusal_headers(verdict)
    if verdict.raw_body:
        sent = dict(added_headers(verdict.response_headers_to_add))
        content_type = sent.get("content-type", "text/plain; charset=utf-8")
        headers.append(("content-type", content_type))
        return HttpAnswer(status=HTTPStatus.TOO_MANY_REQUESTS, headers=headers, body=verdict.raw_body)
    return _problem(HTTPStatus.TOO_MANY_REQUESTS, "The rate limit is exceeded.", headers, _seconds(verdict))


def unavailable() -> HttpAnswer:
    """The answer without a verdict, if the failure mode is `closed`."""
    return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "The rate limit service does not answer.", [], None)


def _problem(status: HTTPStatus, detail: str, headers: list[tuple[str, str]], retry_after: int | None) -> HttpAnswer:
    problem: dict[str, str | int] = {
        "type": "about:blank",
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
    }
    if retry_after is not None:
        problem["retryAfter"] = retry_after
    headers = [*headers, ("content-type", "application/problem+json")]
    return HttpAnswer(status=status, headers=headers, body=json.dumps(problem).encode())
