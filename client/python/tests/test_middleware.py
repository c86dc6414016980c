"""Middleware in real frameworks, with real servers."""

from __future__ import annotations

import io
import json
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import flask
import httpx
import pytest
from fastapi import FastAPI, Response
from fastapi import Request as FastAPIRequest
from sluicegate import AsyncClient, Check, Client, Descriptor, LimitOverride, Unit, asgi, wsgi
from support import LIMITS, Server, free_port, redis, serving, until

OVERRIDE = LimitOverride(requests_per_unit=1, unit=Unit.HOUR)


@asynccontextmanager
async def fastapi_app(target: str, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A FastAPI application that answers the JSON body that it receives."""
    app = FastAPI()
    client = AsyncClient(target, timeout=10)
    app.add_middleware(asgi.RateLimitMiddleware, **{"client": client, "domain": "api", **options})

    @app.post("/")
    async def echo(request: FastAPIRequest) -> Response:
        return Response(await request.body(), headers={"x-own": "1"})

    transport = httpx.ASGITransport(app, client=("10.1.1.1", 1))
    async with client, httpx.AsyncClient(transport=transport, base_url="http://test") as browser:
        yield browser


@contextmanager
def flask_app(target: str, **options: Any) -> Iterator[httpx.Client]:
    """The same in Flask."""
    app = flask.Flask(__name__)

    @app.post("/")
    def echo() -> flask.Response:
        return flask.Response(flask.request.get_data(), headers={"x-own": "1"})

    with Client(target, timeout=10) as client:
        limited = wsgi.RateLimitMiddleware(app.wsgi_app, **{"client": client, "domain": "api", **options})
        transport = httpx.WSGITransport(limited, remote_addr="10.1.1.1")
        with httpx.Client(transport=transport, base_url="http://test") as browser:
            yield browser


def by_header(request: asgi.Request | wsgi.Request) -> list[dict[str, str]]:
    return [{"user": request.header("X-User") or ""}]


async def test_fourth_request_is_refused(server: Server) -> None:
    async with fastapi_app(server.grpc, descriptors=by_header) as browser:
        answers = [await browser.post("/", headers={"x-user": "fastapi"}, content=b"hello") for _ in range(4)]
    assert [it.status_code for it in answers] == [200, 200, 200, 429]
    assert answers[0].text == "hello" and answers[0].headers["x-own"] == "1"
    assert answers[3].json()["title"] == "Too Many Requests"
    assert 3500 < int(answers[3].headers["retry-after"]) <= 3600
    with flask_app(server.grpc, descriptors=by_header) as flask_browser:
        answers = [flask_browser.post("/", headers={"x-user": "flask"}, content=b"hello") for _ in range(4)]
    assert [it.status_code for it in answers] == [200, 200, 200, 429]
    assert answers[0].text == "hello" and answers[0].headers["x-own"] == "1"
    assert answers[3].json()["title"] == "Too Many Requests"


async def test_headers_of_the_server_are_added() -> None:
    with serving(LIMITS, "--response-headers", "ratelimit-draft-11") as server:
        async with fastapi_app(server.grpc, descriptors=by_header) as browser:
            answers = [await browser.post("/", headers={"x-user": "anna"}) for _ in range(4)]
        with flask_app(server.grpc, descriptors=by_header) as flask_browser:
            answers.append(flask_browser.post("/", headers={"x-user": "bob"}))
    assert ";r=2;" in answers[0].headers["ratelimit"] and ";r=2;" in answers[4].headers["ratelimit"]
    assert ";r=0;" in answers[3].headers["ratelimit"] and "retry-after" in answers[3].headers


async def test_not_limited_without_descriptors_and_if_skipped(server: Server) -> None:
    for options in [
        {"descriptors": lambda request: []},
        {"descriptors": by_header, "skip": lambda request: request.path == "/" and request.method == "POST"},
    ]:
        async with fastapi_app(server.grpc, **options) as browser:
            for _ in range(5):
                assert (await browser.post("/", headers={"x-user": "skip"})).status_code == 200
        with flask_app(server.grpc, **options) as flask_browser:
            for _ in range(5):
                assert flask_browser.post("/", headers={"x-user": "skip"}).status_code == 200


async def test_hits_of_a_request_are_charged(server: Server) -> None:
    options = {"descriptors": by_header, "hits": lambda request: int(request.header("x-cost") or 1)}
    async with fastapi_app(server.grpc, **options) as browser:
        costs = [await browser.post("/", headers={"x-user": "cost", "x-cost": cost}) for cost in ("2", "2", "1")]
    assert [it.status_code for it in costs] == [200, 429, 200]
    with flask_app(server.grpc, **options) as flask_browser:
        assert flask_browser.post("/", headers={"x-user": "cost"}).status_code == 429


async def test_application_answers_refusals_itself(server: Server) -> None:
    limited: list[float | None] = []

    def in_fastapi(request: asgi.Request, verdict: Any) -> asgi.ASGIApp:
        limited.append(verdict.retry_after)
        return Response(b"later", status_code=429)

    def in_flask(request: wsgi.Request, verdict: Any) -> Any:
        limited.append(verdict.retry_after)
        return flask.Response(b"later", status=429)

    async with fastapi_app(server.grpc, descriptors=by_header, on_limited=in_fastapi) as browser:
        answer = [await browser.post("/", headers={"x-user": "own"}) for _ in range(4)][3]
    assert (answer.status_code, answer.text) == (429, "later") and "retry-after" in answer.headers
    with flask_app(server.grpc, descriptors=by_header, on_limited=in_flask) as flask_browser:
        answer = flask_browser.post("/", headers={"x-user": "own"})
    assert (answer.status_code, answer.text) == (429, "later") and "retry-after" in answer.headers
    assert len(limited) == 2


def unanswered(target: str, domain: str) -> dict[str, Any]:
    return {
        "target": target,
        "domain": domain,
        "descriptors": lambda request: [Descriptor({"address": "10.0.0.1"}, limit=OVERRIDE)],
    }


async def test_failure_mode_applies_without_a_verdict(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    # Nothing listens; the server does not know the domain, and passes the request without the override.
    for options in [unanswered(f"127.0.0.1:{free_port()}", "api"), unanswered(server.grpc, "nowhere")]:
        for mode, status in [("open", 200), ("closed", 503)]:
            caplog.clear()
            async with fastapi_app(**options, failure_mode=mode) as browser:
                answers = [await browser.post("/") for _ in range(2)]
            with flask_app(**options, failure_mode=mode) as flask_browser:
                answers += [flask_browser.post("/") for _ in range(2)]
            assert [it.status_code for it in answers] == [status] * 4
            assert len(caplog.messages) == 2 and f"applying failure mode {mode}" in caplog.messages[0]
    with pytest.raises(ValueError, match="failure_mode"), flask_app(**options, failure_mode="shut"):
        pass


async def test_shed_request_is_refused_also_with_failure_mode_open() -> None:
    with redis() as (store, port):
        flags = ["--store", f"redis://127.0.0.1:{port}", "--decision-timeout", "1h", "--max-in-flight", "1"]
        with serving(LIMITS, *flags) as server, Client(server.grpc, timeout=60) as client:
            until("the store to be in use", lambda: server.metric("sluicegate_store_degraded") == 0)
            # The next call stays in flight.
            store.send_signal(signal.SIGSTOP)
            held = threading.Thread(target=lambda: client.check(Check("api", [{"user": "anna"}])))
            held.start()
            until("the call to be in flight", lambda: server.metric("sluicegate_requests_in_flight") == 1)
            for descriptor in [Descriptor({"user": "bob"}), Descriptor({"address": "10.0.0.1"}, limit=OVERRIDE)]:
                verdict = client.check(Check("api", [descriptor]))
                assert not verdict.allowed and all(status.limit is None for status in verdict.statuses)
                options = {"descriptors": lambda request, it=descriptor: [it], "failure_mode": "open"}
                async with fastapi_app(server.grpc, **options) as browser:
                    assert (await browser.post("/")).status_code == 429
                with flask_app(server.grpc, **options) as flask_browser:
                    assert flask_browser.post("/").status_code == 429
            assert server.metric("sluicegate_requests_shed_total") == 6
            store.send_signal(signal.SIGCONT)
            held.join(60)


async def test_body_field_is_read_and_left_for_the_application(server: Server) -> None:
    async def by_email(request: asgi.Request) -> list[dict[str, str]]:
        assert await request.json_field("email") == await request.json_field("email")
        return [{"user": await request.json_field("email")}]

    login = json.dumps({"email": "eve@example.com", "password": "x" * 1000}).encode()
    async with fastapi_app(server.grpc, descriptors=by_email) as browser:
        answers = [await browser.post("/", content=login) for _ in range(2)]

        async def parts() -> AsyncIterator[bytes]:
            yield login[:9]
            yield login[9:]

        answers.append(await browser.post("/", content=parts()))
    assert [(it.status_code, it.content) for it in answers] == [(200, login)] * 3
    with flask_app(server.grpc, descriptors=lambda it: [{"user": it.json_field("email")}]) as flask_browser:
        assert flask_browser.post("/", content=login).status_code == 429
        other = json.dumps({"email": "bob@example.com"}).encode()
        assert flask_browser.post("/", content=other).content == other


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"email": 5}',
        b'{"email": {"a": "b"}}',
        b"[" * 60_000,
        b'{"pad": "' + b"x" * 70_000 + b'", "email": "eve@example.com"}',
        b"\xff\xfe\xfd",
    ],
    ids=lambda body: repr(body[:12]),
)
async def test_body_without_the_field_gives_an_empty_text(server: Server, body: bytes) -> None:
    seen: list[str] = []

    async def read(request: asgi.Request) -> list[dict[str, str]]:
        seen.append(await request.json_field("email"))
        return []

    def read_wsgi(request: wsgi.Request) -> list[dict[str, str]]:
        seen.append(request.json_field("email"))
        return []

    async with fastapi_app(server.grpc, descriptors=read) as browser:
        assert (await browser.post("/", content=body)).content == body
    with flask_app(server.grpc, descriptors=read_wsgi) as flask_browser:
        assert flask_browser.post("/", content=body).content == body
    assert seen == ["", ""]


def test_body_without_a_length_is_read_if_the_server_marks_its_end() -> None:
    def fields(body: bytes, **more: Any) -> tuple[str, bytes]:
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "wsgi.input": io.BytesIO(body), **more}
        return wsgi.Request(environ).json_field("email"), environ["wsgi.input"].read()

    short, long = b'{"email": "eve"}', b'{"email": "eve"}' + b" " * 200_000
    assert fields(short, **{"wsgi.input_terminated": True}) == ("eve", short)
    assert fields(long, **{"wsgi.input_terminated": True}) == ("", long)
    assert fields(short) == ("", short)


def test_wsgi_body_is_not_read_beyond_its_length(server: Server) -> None:
    # A socket has no end: a further read would never return.
    def application(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))]

    class Quiet(WSGIRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    with Client(server.grpc, timeout=10) as client, ThreadPoolExecutor(1) as threads:
        limited = wsgi.RateLimitMiddleware(
            application, client=client, domain="api", descriptors=lambda it: [{"user": it.json_field("email")}]
        )
        with make_server("127.0.0.1", 0, limited, handler_class=Quiet) as web:
            threads.submit(web.handle_request)
            body = b'{"email": "socket@example.com"}'
            assert httpx.post(f"http://127.0.0.1:{web.server_port}/", content=body).content == body


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "expected"),
    [
        ("10.1.1.1", None, 0, "10.1.1.1"),
        ("10.1.1.1", "1.1.1.1", 0, "10.1.1.1"),
        ("10.1.1.1", "1.1.1.1", 1, "1.1.1.1"),
        ("10.1.1.1", "6.6.6.6, 1.1.1.1", 1, "1.1.1.1"),
        ("10.1.1.1", "6.6.6.6, 1.1.1.1, 2.2.2.2", 2, "1.1.1.1"),
        ("10.1.1.1", "1.1.1.1", 2, "10.1.1.1"),
        ("10.1.1.1", None, 1, "10.1.1.1"),
        ("10.1.1.1", "", 1, "10.1.1.1"),
        ("10.1.1.1", "1.1.1.1, unknown", 1, "10.1.1.1"),
        ("10.1.1.1", "1.1.1.1:80", 1, "10.1.1.1"),
        ("10.1.1.1", "2001:DB8:0::1", 1, "2001:db8::1"),
        ("::ffff:10.1.1.1", None, 0, "10.1.1.1"),
        (None, None, 0, ""),
        (None, "1.1.1.1", 1, "1.1.1.1"),
    ],
)
def test_client_ip(peer: str | None, forwarded: str | None, trusted: int, expected: str) -> None:
    header = {} if forwarded is None else {"HTTP_X_FORWARDED_FOR": forwarded}
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": peer or "", **header}
    assert wsgi.Request(environ).client_ip(trusted_proxies=trusted) == expected

    async def receive() -> asgi.Message:
        raise AssertionError

    # A header in several lines is one list.
    lines = [] if forwarded is None else [(b"x-forwarded-for", it.encode()) for it in forwarded.split(",")]
    scope = {"method": "GET", "path": "/", "headers": lines, "client": (peer, 1) if peer else None}
    assert asgi.Request(scope, receive).client_ip(trusted_proxies=trusted) == expected


def test_user_is_that_of_the_framework() -> None:
    from starlette.authentication import SimpleUser, UnauthenticatedUser

    async def receive() -> asgi.Message:
        raise AssertionError

    scope = {"method": "GET", "path": "/", "headers": []}
    assert asgi.Request({**scope, "user": SimpleUser("anna")}, receive).user == "anna"
    assert asgi.Request({**scope, "user": UnauthenticatedUser()}, receive).user is None
    assert asgi.Request(scope, receive).user is None
    assert wsgi.Request({"REQUEST_METHOD": "GET", "REMOTE_USER": "anna"}).user == "anna"
    assert wsgi.Request({"REQUEST_METHOD": "GET"}).user is None


async def test_other_scopes_pass() -> None:
    seen: list[str] = []

    async def application(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    limited = asgi.RateLimitMiddleware(
        application, client=AsyncClient("127.0.0.1:1"), domain="api", descriptors=lambda request: []
    )
    for kind in ["lifespan", "websocket"]:
        await limited({"type": kind}, nothing, nothing)
    assert seen == ["lifespan", "websocket"]
