"""What the middleware costs beside a bare handler, without an HTTP server: `python bench/middleware.py`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sluicegate import AsyncClient, Client, asgi, wsgi
from support import serving

LIMITS = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}]"
COUNT = 3000
ROUNDS = 5


def report(name: str, seconds: list[float]) -> None:
    """Prints the time of a request in the fastest round."""
    print(f"{name:24} {min(seconds) / COUNT * 1e6:8.1f} µs")


async def handle(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
    """The bare handler of ASGI."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def handle_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    """The bare handler of WSGI."""
    start_response("200 OK", [])
    return [b"hello"]


async def measure(app: asgi.ASGIApp) -> float:
    """Seconds for all requests, one after the other."""
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("10.0.0.1", 1)}
    statuses: list[int] = []

    async def receive() -> asgi.Message:
        return {"type": "http.request"}

    async def send(message: asgi.Message) -> None:
        if "status" in message:
            statuses.append(message["status"])

    begin = time.perf_counter()
    for _ in range(COUNT):
        await app(scope, receive, send)
    assert statuses == [200] * COUNT
    return time.perf_counter() - begin


def measure_wsgi(app: Any) -> float:
    """The same for WSGI."""
    statuses: list[str] = []
    begin = time.perf_counter()
    for _ in range(COUNT):
        app(
            {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "10.0.0.1"},
            lambda status, headers: statuses.append(status),
        )
    assert statuses == ["200 OK"] * COUNT
    return time.perf_counter() - begin


def by_address(request: asgi.Request | wsgi.Request) -> list[dict[str, str]]:
    """The descriptor of a request."""
    return [{"user": request.client_ip(trusted_proxies=0)}]


async def main(target: str) -> None:
    """Measures all."""
    async with AsyncClient(target, timeout=10) as client:
        limited = asgi.RateLimitMiddleware(handle, client=client, domain="api", descriptors=by_address)
        report("ASGI, bare", [await measure(handle) for _ in range(ROUNDS)])
        report("ASGI, limited", [await measure(limited) for _ in range(ROUNDS)])
    with Client(target, timeout=10) as sync_client:
        limited_wsgi = wsgi.RateLimitMiddleware(handle_wsgi, client=sync_client, domain="api", descriptors=by_address)
        report("WSGI, bare", [measure_wsgi(handle_wsgi) for _ in range(ROUNDS)])
        report("WSGI, limited", [measure_wsgi(limited_wsgi) for _ in range(ROUNDS)])


if __name__ == "__main__":
    with serving(LIMITS) as server:
        asyncio.run(main(server.grpc))
