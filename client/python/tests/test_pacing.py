"""Waiting for the service, with real servers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import httpx
import pytest
from sluicegate import (
    AsyncClient,
    AsyncPacer,
    Check,
    CheckError,
    Client,
    Pacer,
    PacerClosed,
    Verdict,
    WaitExceeded,
    backoff,
)
from sluicegate import _pacing as pacing
from sluicegate._check import request_of
from support import LIMITS, Server, free_port, serving, until

RATE = 50
"""Of the rule `job`: gcra with burst 1."""


def job(name: str) -> Check:
    return Check("api", [{"job": name}])


def slow(name: str) -> Check:
    """One an hour."""
    return Check("api", [{"slow": name}])


def is_paced(times: list[float]) -> bool:
    """Whether the average is no faster than the rate. The service's clock decides; ours may see single gaps shorter."""
    return times[-1] - times[0] >= (len(times) - 1) / RATE - 0.01


class CountingClient(AsyncClient):
    """A client that counts its checks, and can hold their answers back."""

    def __init__(self, target: str) -> None:
        super().__init__(target, timeout=10)
        self.checks = 0
        self.refunds = 0
        self.released = asyncio.Event()
        self.released.set()

    async def check(self, check: Check, *, timeout: float | None = None) -> Verdict:
        if request_of(check).descriptors[0].is_negative_hits:
            self.refunds += 1
        else:
            self.checks += 1
        verdict = await super().check(check, timeout=timeout)
        await self.released.wait()
        return verdict


async def until_charged(server: Server, check: Check) -> None:
    async with AsyncClient(server.grpc, timeout=10) as observer:
        while (await observer.peek(check)).statuses[0].remaining:
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(LIMITS, "--dynamic-metadata") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc, timeout=10) as it:
        yield it


def test_threads_wait_in_order_and_are_paced(client: Client) -> None:
    admitted: list[tuple[int, float]] = []
    started = threading.Semaphore(0)

    def wait_for_turn(number: int) -> None:
        started.release()
        client.acquire(job("threads"))
        admitted.append((number, time.monotonic()))

    # The first makes the others wait, so that their order is that of their start.
    client.check(job("threads"), timeout=10)
    with ThreadPoolExecutor(10) as threads:
        for number in range(10):
            threads.submit(wait_for_turn, number)
            started.acquire()
            time.sleep(0.002)
    assert [number for number, _ in admitted] == list(range(10))
    assert is_paced([at for _, at in admitted])


async def test_tasks_wait_in_order_and_only_the_first_asks(server: Server) -> None:
    async with CountingClient(server.grpc) as client:
        admitted: list[tuple[int, float]] = []

        async def wait_for_turn(number: int) -> None:
            await client.acquire(job("tasks"))
            admitted.append((number, time.monotonic()))

        await asyncio.gather(*(wait_for_turn(number) for number in range(20)))
        assert [number for number, _ in admitted] == list(range(20))
        assert is_paced([at for _, at in admitted])
        # Each asks, is refused, waits, and asks again: with jitter seldom a third time.
        assert client.checks < 60
        # Other descriptors have an order of their own.
        await client.acquire(job("other"))
        assert not client._schedules._schedules


async def test_wait_exceeded_charges_nothing(server: Server, client: Client) -> None:
    check = slow("exceeded")
    assert client.check(check).allowed
    begin = time.monotonic()
    with pytest.raises(WaitExceeded):
        client.acquire(check, max_wait=60)
    async with AsyncClient(server.grpc, timeout=10) as async_client:
        with pytest.raises(WaitExceeded):
            await async_client.acquire(check, max_wait=60)
        with pytest.raises(WaitExceeded):
            await asyncio.gather(*(async_client.acquire(check, max_wait=0.05) for _ in range(5)))
    # The service reports a wait of an hour, which is longer than `max_wait`, so callers give up at once.
    assert time.monotonic() - begin < 50
    client.refund(check)
    assert client.acquire(check, max_wait=10).allowed


async def test_waiter_behind_another_gives_up_at_its_time(server: Server) -> None:
    async with CountingClient(server.grpc) as client:
        check = slow("behind")
        await client.check(check)
        first = asyncio.create_task(client.acquire(check))
        await asyncio.sleep(0.05)
        with pytest.raises(WaitExceeded):
            await client.acquire(check, max_wait=0.05)
        # Only the first asked.
        assert client.checks == 2
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not client._schedules._schedules


async def test_cancelled_check_in_flight_is_refunded(server: Server) -> None:
    async with CountingClient(server.grpc) as client:
        check = slow("cancelled")
        client.released.clear()
        first = asyncio.create_task(client.acquire(check))
        second = asyncio.create_task(client.acquire(check, max_wait=30))
        await until_charged(server, check)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert client.refunds == 0
        client.released.set()
        # The next waiter asks only after the refund. Before, the service would report a wait of an hour.
        assert (await second).allowed
        assert (client.checks, client.refunds) == (2, 1)


async def test_close_awaits_refunds(server: Server) -> None:
    client = CountingClient(server.grpc)
    check = slow("closed")
    client.released.clear()
    task = asyncio.create_task(client.acquire(check))
    await until_charged(server, check)
    task.cancel()
    asyncio.get_running_loop().call_later(0.05, client.released.set)
    await asyncio.wait([task])
    await client.close()
    async with AsyncClient(server.grpc, timeout=10) as other:
        assert (await other.peek(check)).statuses[0].remaining == 1


async def test_failed_check_ends_the_wait() -> None:
    target = f"127.0.0.1:{free_port()}"
    with Client(target, timeout=10) as client, pytest.raises(CheckError):
        client.acquire(job("failed"))
    async with AsyncClient(target, timeout=10) as async_client:
        results = await asyncio.gather(*(async_client.acquire(job("failed")) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(it, CheckError) for it in results)
        assert not async_client._schedules._schedules


def test_two_priorities_share_as_told(client: Client) -> None:
    pacer = Pacer(client, job("shares"), weights={"interactive": 3, "batch": 1})
    done: list[str] = []
    with ThreadPoolExecutor(80) as threads:
        for priority in ["batch", "interactive"]:
            for _ in range(40):
                threads.submit(pacer.run, lambda it=priority: done.append(it), priority=priority)
        until("40 jobs", lambda: len(done) >= 40)
        share = done[4:40].count("interactive")
        # Cancels the remaining jobs, which would take much longer.
        pacer.close()
    assert 26 <= share <= 28


async def test_two_priorities_share_as_told_async(server: Server) -> None:
    async with AsyncClient(server.grpc, timeout=10) as client:
        pacer = AsyncPacer(client, job("async-shares"), weights={"interactive": 3, "batch": 1})
        done: list[str] = []

        async def work(priority: str) -> None:
            done.append(priority)

        tasks = [
            asyncio.create_task(pacer.run(lambda it=priority: work(it), priority=priority))
            for priority in ["batch"] * 12 + ["interactive"] * 36
        ]
        await asyncio.gather(*tasks)
        assert done[:40].count("interactive") in (29, 30, 31)
        assert done.count("batch") == 12


async def test_idle_priority_makes_nothing_up(server: Server) -> None:
    async with AsyncClient(server.grpc, timeout=10) as client:
        pacer = AsyncPacer(client, job("idle"), weights={"a": 1, "b": 1})
        done: list[str] = []

        async def work(priority: str) -> None:
            done.append(priority)

        def start(priority: str) -> asyncio.Task[None]:
            return asyncio.create_task(pacer.run(lambda: work(priority), priority=priority))

        await asyncio.gather(*(start("a") for _ in range(10)))
        await asyncio.gather(*(start(it) for it in ["a"] * 5 + ["b"] * 5))
        assert done[10:].count("b") == 5
        assert done[10:16].count("b") in (2, 3)


async def test_closed_pacer_cancels_waiting_jobs(server: Server, client: Client) -> None:
    client.check(slow("close"))
    pacer = Pacer(client, slow("close"))
    with ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(pacer.run, lambda: None) for _ in range(3)]
        assert not wait(jobs, timeout=0.1).done
        pacer.close()
        assert [type(it.exception(10)) for it in jobs] == [PacerClosed] * 3
    with pytest.raises(PacerClosed):
        pacer.run(lambda: None)
    async with AsyncClient(server.grpc, timeout=10) as async_client:
        async_pacer = AsyncPacer(async_client, slow("close"))

        async def nothing() -> None:
            raise AssertionError

        tasks = [asyncio.create_task(async_pacer.run(nothing)) for _ in range(3)]
        await asyncio.sleep(0.1)
        async_pacer.close()
        assert [type(it) for it in await asyncio.gather(*tasks, return_exceptions=True)] == [PacerClosed] * 3


async def test_result_and_error_of_a_job_are_those_of_run(server: Server, client: Client) -> None:
    pacer = Pacer(client, job("result"))
    assert pacer.run(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        pacer.run(lambda: 1 // 0)
    async with AsyncClient(server.grpc, timeout=10) as async_client:

        async def answer() -> int:
            return 42

        assert await AsyncPacer(async_client, job("result")).run(answer) == 42
    with pytest.raises(ValueError, match="unknown priority 'urgent'"):
        pacer.run(lambda: None, priority="urgent")
    with pytest.raises(ValueError, match="positive"):
        Pacer(client, job("result"), weights={"a": 0})


def test_jitter_never_wakes_before_the_told_time() -> None:
    def verdict(retry_after: float | None, exact: float | None = None) -> Verdict:
        limits = [{}, {"retryAfter": 0.01}, {"retryAfter": exact}]
        refusing = {"code": "OVER_LIMIT", "limits": limits}
        others = [
            {},
            "text",
            {"code": "OVER_LIMIT"},
            {"code": "OVER_LIMIT", "limits": ["text", {"retryAfter": "text"}]},
        ]
        return Verdict(
            allowed=False,
            statuses=(),
            retry_after=retry_after,
            response_headers_to_add=(),
            request_headers_to_add=(),
            raw_body=b"",
            dynamic_metadata={} if exact is None else {"descriptors": [*others, refusing]},
        )

    pauses = [pacing.pause_after(verdict(2.0), 0) for _ in range(1000)]
    assert min(pauses) >= 2.001 and max(pauses) <= 2.2 and max(pauses) - min(pauses) > 0.1
    assert all(0.002 <= pacing.pause_after(verdict(0.001), 0) <= 0.002 for _ in range(10))
    # Services round `retry_after` up, and send the exact time in the metadata.
    pauses = [pacing.pause_after(verdict(2.0, 1.5), 0) for _ in range(1000)]
    assert min(pauses) >= 1.501 and max(pauses) <= 1.65
    # A header with another time takes precedence.
    assert all(pacing.pause_after(verdict(6.0, exact), 0) >= 6 for exact in [1.5, 6.5, 60.0])
    # Without a time from the service, the pause is a backoff without Retry-After.
    assert all(0 <= pacing.pause_after(verdict(None), 3) <= 0.8 for _ in range(1000))


@pytest.mark.parametrize(("attempt", "longest"), [(0, 0.1), (3, 0.8), (8, 25.6), (9, 30.0), (10**9, 30.0)])
def test_backoff_is_random_above_the_told_time(attempt: int, longest: float) -> None:
    for retry_after in [None, 0.0, 5.0]:
        delays = [backoff(retry_after, attempt) for _ in range(1000)]
        least = retry_after or 0.0
        assert min(delays) >= least and max(delays) <= least + longest
        assert max(delays) - min(delays) > longest / 2


def test_a_caller_that_backs_off_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of docs/backoff.md."""
    refusals = [httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(429)]
    answers = iter([*refusals, httpx.Response(200)])
    session = httpx.Client(transport=httpx.MockTransport(lambda _: next(answers)))
    url = "https://provider.example/v1/chat"
    delays: list[float] = []
    monkeypatch.setattr(time, "sleep", delays.append)
    for attempt in range(5):
        response = session.get(url)
        if response.status_code != 429:
            break
        time.sleep(backoff(float(response.headers.get("retry-after", 0)), attempt))
    assert response.status_code == 200
    assert len(delays) == 2 and 7 <= delays[0] <= 7.1 and 0 <= delays[1] <= 0.2
