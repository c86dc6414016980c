"""The conformance of all clients: ../conformance/answers.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.json_format import ParseDict
from sluicegate import AsyncClient, Check, CheckError, Client, Descriptor, LimitOverride, Unit, Verdict, asgi, wsgi
from sluicegate._connection import METHOD
from sluicegate._generated.rls_pb2 import RateLimitRequest, RateLimitResponse
from support import CLIENT

CASES = json.loads((CLIENT.parent / "conformance/answers.json").read_text())


class Stub(grpc.GenericRpcHandler):
    """A service with a scripted answer."""

    def __init__(self) -> None:
        self.answer = RateLimitResponse()
        self.target = ""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        assert details.method == METHOD
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self.answer,
            request_deserializer=RateLimitRequest.FromString,
            response_serializer=RateLimitResponse.SerializeToString,
        )


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    stub = Stub()
    server = grpc.server(ThreadPoolExecutor(1), handlers=[stub])
    stub.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield stub
    server.stop(None)


@pytest.fixture(params=CASES, ids=[case["name"] for case in CASES])
def case(request: pytest.FixtureRequest, stub: Stub) -> Any:
    stub.answer = ParseDict(request.param["answer"], RateLimitResponse())
    return request.param


def descriptors(case: Any) -> list[Descriptor]:
    limit = LimitOverride(requests_per_unit=5, unit=Unit.MINUTE, unit_multiplier=15)
    return [Descriptor({"key": str(at)}, limit=limit if own else None) for at, own in enumerate(case["overrides"])]


def expect_verdict(case: Any, verdict: Verdict) -> None:
    assert case["verdict"] == {"allowed": verdict.allowed}
    milliseconds = None if verdict.retry_after is None else round(verdict.retry_after * 1000)
    assert milliseconds == case["retryAfterMs"]


def expect_answer(case: Any, answer: httpx.Response) -> None:
    wanted = case["http"]
    assert answer.status_code == wanted["status"]
    for name, value in wanted["headers"].items():
        # One line of each: `get` would join several.
        assert answer.headers.get_list(name) == ([] if value is None else [value]), name
    if answer.status_code != 200:
        assert answer.headers["content-length"] == str(len(answer.content))
    if wanted["body"] is not None:
        is_json = "json" in answer.headers["content-type"]
        assert (answer.json() if is_json else answer.text) == (
            json.loads(wanted["body"]) if is_json else wanted["body"]
        )


def test_verdict(case: Any, stub: Stub) -> None:
    with Client(stub.target, timeout=10) as client:
        try:
            verdict = client.check(Check("api", descriptors(case)))
        except CheckError as error:
            assert case["verdict"] == {"error": error.kind}
        else:
            expect_verdict(case, verdict)


async def test_verdict_async(case: Any, stub: Stub) -> None:
    async with AsyncClient(stub.target, timeout=10) as client:
        try:
            verdict = await client.check(Check("api", descriptors(case)))
        except CheckError as error:
            assert case["verdict"] == {"error": error.kind}
        else:
            expect_verdict(case, verdict)


async def test_asgi_middleware(case: Any, stub: Stub) -> None:
    async def application(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"handled"})

    async with AsyncClient(stub.target, timeout=10) as client:
        limited = asgi.RateLimitMiddleware(
            application,
            client=client,
            domain="api",
            descriptors=lambda request: descriptors(case),
            failure_mode="closed",
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://test") as browser:
            expect_answer(case, await browser.get("/"))


def test_wsgi_middleware(case: Any, stub: Stub) -> None:
    def application(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"handled"]

    with Client(stub.target, timeout=10) as client:
        limited = wsgi.RateLimitMiddleware(
            application,
            client=client,
            domain="api",
            descriptors=lambda request: descriptors(case),
            failure_mode="closed",
        )
        with httpx.Client(transport=httpx.WSGITransport(limited), base_url="http://test") as browser:
            expect_answer(case, browser.get("/"))
