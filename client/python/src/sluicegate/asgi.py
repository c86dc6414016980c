"""Middleware for ASGI applications, such as FastAPI, Starlette and Django."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from ._async_client import AsyncClient
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

__all__ = ["Descriptors", "FailureMode", "RateLimitMiddleware", "Request"]

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Request(BaseRequest):
    """A request of an ASGI server."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        client = scope.get("client")
        user: Any = scope.get("user")
        super().__init__(
            method=scope["method"],
            path=scope["path"],
            headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]],
            peer=client[0] if client else None,
            user=user.display_name if getattr(user, "is_authenticated", False) else None,
        )
        self.scope = scope
        """The ASGI scope."""
        self._receive = receive
        self._received: list[Message] = []
        self._body: bytes | None = None

    async def json_field(self, name: str) -> str:
        """A text field of a JSON body, such as the e-mail address of a login.

        Empty if the body is not a JSON object, or has no such text, or is longer than 64 KiB: use the value in a
        descriptor nevertheless, so that these requests share a limit, and are not without one. The application can
        read the body as well.
        """
        if not self._received:
            self._body = await self._read()
        return json_field(self._body, name)

    async def receive(self) -> Message:
        """The messages of the server, also those that were read for the body."""
        return self._received.pop(0) if self._received else await self._receive()

    async def _read(self) -> bytes | None:
        body, more = b"", True
        while more and len(body) <= BODY_MAX:
            message = await self._receive()
            self._received.append(message)
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return None if more or len(body) > BODY_MAX else body


class RateLimitMiddleware(BaseMiddleware[Request, AsyncClient, "Descriptors | Awaitable[Descriptors]", ASGIApp]):
    """Asks the rate limit service before each HTTP request, and answers 429 to those that it refuses.

        app.add_middleware(
            RateLimitMiddleware,
            client=AsyncClient("127.0.0.1:8081"),
            domain="api",
            descriptors=lambda request: [{"remote_address": request.client_ip(trusted_proxies=0)}],
        )

    `descriptors` returns the descriptors of a request, and may be a coroutine; with an empty list the request is not
    limited. `hits` returns the number of hits, 1 by default. `skip` exempts requests. `failure_mode` applies if the
    service gives no verdict: `open` (default) lets the request pass, `closed` answers 503. `timeout` in seconds
    replaces that of the client. `on_limited` is called for each refused request; if it returns an ASGI application,
    such as a response of Starlette, that answers in place of problem+json, with the headers of the limit added.

    Only HTTP requests are limited, not WebSockets.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it to the application."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope, receive)
        try:
            verdict = await self._check(request)
        except CheckError as error:
            self._failures.failed(error)
            if self._failure_mode == "closed":
                return await _send(unavailable(), send)
            verdict = None
        if verdict is None:
            return await self._app(scope, request.receive, send)
        if verdict.allowed:
            return await self._app(
                scope, request.receive, _adding(added_headers(verdict.response_headers_to_add), send)
            )
        answer = self._answer_of_application(request, verdict)
        if answer is not None:
            return await answer(scope, request.receive, _adding(refusal_headers(verdict), send))
        await _send(refusal(verdict), send)

    async def _check(self, request: Request) -> Verdict | None:
        if self._is_skipped(request):
            return None
        descriptors = self._descriptors(request)
        if inspect.isawaitable(descriptors):
            descriptors = await descriptors
        if not descriptors:
            return None
        check = self._check_of(request, descriptors)
        verdict = await self._client.check(check, timeout=self._timeout)
        self._failures.succeeded()
        return verdict


async def _send(answer: HttpAnswer, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.all_headers]
    await send({"type": "http.response.start", "status": answer.status.value, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _adding(headers: list[tuple[str, str]], send: Send) -> Send:
    if not headers:
        return send
    added = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *added]
        await send(message)

    return send_with_headers
