"""Middleware for WSGI applications, such as Flask and Django."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._client import Client
from ._errors import CheckError
from ._http import (
    BODY_MAX,
    BaseMiddleware,
    BaseRequest,
    Descriptors,
    FailureMode,
    HttpAnswer,
    added_headers,
    json_field,
    refusal,
    refusal_headers,
    unavailable,
)
from ._verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed import OptExcInfo
    from _typeshed.wsgi import InputStream, StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["Descriptors", "FailureMode", "RateLimitMiddleware", "Request"]


class Request(BaseRequest):
    """A request of a WSGI server."""

    def __init__(self, environ: WSGIEnvironment) -> None:
        headers = [(key[5:].replace("_", "-").lower(), environ[key]) for key in environ if key.startswith("HTTP_")]
        for key in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if environ.get(key):
                headers.append((key.replace("_", "-").lower(), environ[key]))
        super().__init__(
            method=environ["REQUEST_METHOD"],
            path=_path(environ),
            headers=headers,
            peer=environ.get("REMOTE_ADDR") or None,
            user=environ.get("REMOTE_USER") or None,
        )
        self.environ = environ
        """The WSGI environment."""
        self._body: bytes | None = None
        self._has_read = False

    def json_field(self, name: str) -> str:
        """A text field of a JSON body, such as the e-mail address of a login.

        Empty if the body is not a JSON object, or has no such text, or is longer than 64 KiB: use the value in a
        descriptor nevertheless, so that these requests share a limit, and are not without one. The application can
        read the body as well.
        """
        if not self._has_read:
            self._has_read = True
            self._body = self._read()
        return json_field(self._body, name)

    def _read(self) -> bytes | None:
        source: InputStream = self.environ["wsgi.input"]
        length = self.environ.get("CONTENT_LENGTH") or ""
        if length.isdecimal():
            if int(length) > BODY_MAX:
                return None
            body = _read(source, int(length))
            self.environ["wsgi.input"] = io.BytesIO(body)
            return body
        # Without a length only some servers mark the end of the body.
        if not self.environ.get("wsgi.input_terminated"):
            return None
        body = _read(source, BODY_MAX + 1)
        self.environ["wsgi.input"] = io.BufferedReader(_Replayed(body, source))
        return body if len(body) <= BODY_MAX else None


def _read(source: InputStream, length: int) -> bytes:
    parts = []
    while length > 0 and (part := source.read(length)):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _path(environ: WSGIEnvironment) -> str:
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    # Bytes of UTF-8 as characters: WSGI has it so.
    return path.encode("latin-1", "replace").decode("utf-8", "replace")


class _Replayed(io.RawIOBase):
    """What was read of a body, then its rest."""

    def __init__(self, read: bytes, rest: InputStream) -> None:
        self._read = io.BytesIO(read)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        part = self._read.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)


class RateLimitMiddleware(BaseMiddleware[Request, Client, Descriptors, "WSGIApplication"]):
    """Asks the rate limit service before each request, and answers 429 to those that it refuses.

        app.wsgi_app = RateLimitMiddleware(
            app.wsgi_app,
            client=Client("127.0.0.1:8081"),
            domain="api",
            descriptors=lambda request: [{"remote_address": request.client_ip(trusted_proxies=0)}],
        )

    `descriptors` returns the descriptors of a request; with an empty list the request is not limited. `hits` returns
    the number of hits, 1 by default. `skip` exempts requests. `failure_mode` applies if the service gives no verdict:
    `open` (default) lets the request pass, `closed` answers 503. `timeout` in seconds replaces that of the client.
    `on_limited` is called for each refused request; if it returns a WSGI application, such as a response of Flask, that
    answers in place of problem+json, with the headers of the limit added.
    """

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers a request, or passes it to the application."""
        request = Request(environ)
        try:
            verdict = self._check(request)
        except CheckError as error:
            self._failures.failed(error)
            if self._failure_mode == "closed":
                return _answer(unavailable(), start_response)
            verdict = None
        if verdict is None:
            return self._app(environ, start_response)
        if verdict.allowed:
            return self._app(environ, _adding(added_headers(verdict.response_headers_to_add), start_response))
        answer = self._answer_of_application(request, verdict)
        if answer is not None:
            return answer(environ, _adding(refusal_headers(verdict), start_response))
        return _answer(refusal(verdict), start_response)

    def _check(self, request: Request) -> Verdict | None:
        if self._is_skipped(request):
            return None
        descriptors = self._descriptors(request)
        if not descriptors:
            return None
        check = self._check_of(request, descriptors)
        verdict = self._client.check(check, timeout=self._timeout)
        self._failures.succeeded()
        return verdict


def _answer(answer: HttpAnswer, start_response: StartResponse) -> Iterable[bytes]:
    start_response(f"{answer.status.value} {answer.status.phrase}", answer.all_headers)
    return [answer.body]


def _adding(headers: list[tuple[str, str]], start_response: StartResponse) -> StartResponse:
    def start_with_headers(
        status: str, own: list[tuple[str, str]], exc_info: OptExcInfo | None = None, /
    ) -> Callable[[bytes], object]:
        if exc_info is None:
            return start_response(status, [*own, *headers])
        return start_response(status, [*own, *headers], exc_info)

    return start_with_headers
