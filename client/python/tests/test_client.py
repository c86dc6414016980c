"""Both clients with real servers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from sluicegate import (
    AsyncClient,
    CallFailed,
    Check,
    CheckError,
    Client,
    DeadlineExceeded,
    Descriptor,
    LimitOverride,
    OverrideNotApplied,
    Tls,
    Unavailable,
    Unit,
)
from support import LIMITS, Server, free_port, serving

ANY_WINDOW = LimitOverride(requests_per_unit=2, unit=Unit.SECOND, unit_multiplier=90)


def user(name: str) -> Check:
    return Check("api", [{"user": name}])


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc, timeout=10) as it:
        yield it


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.grpc, timeout=10) as it:
        yield it


def test_fourth_request_is_refused(client: Client) -> None:
    remaining = [client.check(user("anna")).statuses[0].remaining for _ in range(3)]
    assert remaining == [2, 1, 0]
    verdict = client.check(user("anna"))
    assert not verdict.allowed
    assert verdict.retry_after is not None and 3500 < verdict.retry_after <= 3600
    limit = verdict.statuses[0].limit
    assert limit is not None and (limit.requests_per_unit, limit.unit, limit.unit_multiplier) == (3, Unit.HOUR, 1)


async def test_fourth_request_is_refused_async(async_client: AsyncClient) -> None:
    assert [(await async_client.check(user("bob"))).allowed for _ in range(4)] == [True, True, True, False]


def test_hits_peek_and_refund(client: Client) -> None:
    check = Check("api", [{"user": "carl"}], hits=3)
    assert client.check(check).allowed
    assert not client.check(user("carl")).allowed
    client.refund(check, 2)
    assert client.peek(user("carl")).statuses[0].remaining == 2
    client.refund(user("carl"))
    assert client.peek(user("carl")).statuses[0].remaining == 3


async def test_hits_peek_and_refund_async(async_client: AsyncClient) -> None:
    check = Check("api", [{"user": "dora"}], hits=3)
    assert (await async_client.check(check)).allowed
    await async_client.refund(check, 2)
    assert (await async_client.peek(user("dora"))).statuses[0].remaining == 2


def test_override_of_any_window_applies_in_a_known_domain(client: Client) -> None:
    check = Check("api", [Descriptor({"address": "10.0.0.1"}, limit=ANY_WINDOW)])
    assert [client.check(check).allowed for _ in range(3)] == [True, True, False]
    limit = client.peek(check).statuses[0].limit
    assert limit is not None and (limit.requests_per_unit, limit.unit, limit.unit_multiplier) == (2, Unit.SECOND, 90)


async def test_override_in_an_unknown_domain_is_an_error(client: Client, async_client: AsyncClient) -> None:
    check = Check("nowhere", [Descriptor({"address": "10.0.0.1"}, limit=ANY_WINDOW)])
    with pytest.raises(OverrideNotApplied, match="'nowhere'") as error:
        client.check(check)
    assert error.value.kind == "override_not_applied"
    with pytest.raises(OverrideNotApplied):
        await async_client.check(check)


async def test_failed_calls_have_kinds(server: Server) -> None:
    def error_of(target: str, check: Check, timeout: float) -> CheckError:
        with Client(target, timeout=timeout) as client, pytest.raises(CheckError) as error:
            client.check(check)
        return error.value

    def kind(error: CheckError) -> tuple[type, str]:
        return type(error), error.kind

    unreachable = f"127.0.0.1:{free_port()}"
    assert kind(error_of(unreachable, user("eve"), 10)) == (Unavailable, "unavailable")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        assert kind(error_of(target, user("eve"), 0.2)) == (DeadlineExceeded, "deadline_exceeded")
    rejected = error_of(server.grpc, Check("", [{"user": "eve"}]), 10)
    assert isinstance(rejected, CallFailed) and rejected.kind == "other"
    assert rejected.code is not grpc.StatusCode.OK
    async with AsyncClient(unreachable, timeout=10) as client:
        with pytest.raises(Unavailable):
            await client.check(user("eve"))


async def test_health(server: Server) -> None:
    with Client(server.grpc) as client:
        assert client.is_serving(timeout=10)
    async with AsyncClient(server.grpc) as async_client:
        assert await async_client.is_serving(timeout=10)
    with Client(f"127.0.0.1:{free_port()}") as unreachable, pytest.raises(DeadlineExceeded):
        unreachable.is_serving()


async def test_unix_socket(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/grpc.sock"
    with serving(LIMITS, grpc=target):
        with Client(target, timeout=10) as client:
            assert client.check(user("anna")).allowed
        async with AsyncClient(target, timeout=10) as async_client:
            assert (await async_client.check(user("anna"))).allowed


def certificate(folder: Path, name: str, signer: str | None) -> None:
    """Creates NAME.pem and NAME.key, signed by itself or by SIGNER."""
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost", "-keyout", f"{name}.key"]
    command += ["-out", f"{name}.pem"]
    if signer is not None:
        command += ["-CA", f"{signer}.pem", "-CAkey", f"{signer}.key", "-addext", "basicConstraints=critical,CA:false"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


async def test_tls_with_own_ca_and_client_certificate(tmp_path: Path) -> None:
    for name, signer in [("ca", None), ("server", "ca"), ("client", "ca")]:
        certificate(tmp_path, name, signer)

    def pem(name: str) -> bytes:
        return (tmp_path / name).read_bytes()

    files = {"cert": "server.pem", "key": "server.key", "client-ca": "ca.pem"}
    flags = [text for flag, name in files.items() for text in (f"--grpc-tls-{flag}", str(tmp_path / name))]
    with serving(LIMITS, *flags) as server:
        target = server.grpc.replace("127.0.0.1", "localhost")
        known = Tls(ca=pem("ca.pem"), certificate=pem("client.pem"), key=pem("client.key"))
        with Client(target, tls=known, timeout=10) as client:
            assert client.check(user("anna")).allowed
            assert client.is_serving()
        async with AsyncClient(target, tls=known, timeout=10) as async_client:
            assert (await async_client.check(user("anna"))).allowed
        # No certificate of the client; a CA that is not among the system's; no TLS.
        for tls in [Tls(ca=pem("ca.pem")), Tls(), None]:
            with Client(target, tls=tls, timeout=10) as client, pytest.raises(Unavailable):
                client.check(user("anna"))


def test_call_after_the_service_is_back_succeeds() -> None:
    port = free_port()
    with Client(f"127.0.0.1:{port}", timeout=10) as client:
        with pytest.raises(Unavailable):
            client.check(user("anna"))
        with serving(LIMITS, grpc=f"127.0.0.1:{port}"):
            assert client.is_serving(timeout=30)
            assert client.check(user("anna")).allowed


def test_client_made_before_a_fork_works_in_both_processes(server: Server) -> None:
    program = """
import os, sys
from sluicegate import Check, Client
client = Client(sys.argv[1], timeout=10)
child = os.fork()
allowed = client.check(Check("api", [{"user": sys.argv[2]}])).allowed
if child == 0:
    os._exit(0 if allowed else 1)
assert allowed and os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", program, server.grpc, f"fork-{os.getpid()}"], check=True, timeout=60)
