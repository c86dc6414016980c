"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from ._check import Check, request_of
from ._connection import DEFAULT_TIMEOUT, HEALTH_METHOD, METHOD, ChannelOptions, Tls, channel_options, credentials
from ._errors import CheckError, check_error
from ._generated import rls_pb2
from ._pacing import Schedule, Schedules, Waiter, deadline_after, seconds_until
from ._verdict import Verdict, verdict_of

T = TypeVar("T")


class AsyncClient:
    """A connection to a rate limit service, for one event loop.

        async with AsyncClient("127.0.0.1:8081") as client:
            verdict = await client.check(Check("api", [{"user": "bob"}]))

    `target` is `host:port`, or `unix:/path` for a socket. `tls` encrypts the connection; `Tls()` trusts the CAs of the
    system. `timeout` is the longest time in seconds to wait for an answer. `options` are gRPC channel arguments.

    The connection is made with the first call, so a client can be created before the event loop runs. Nothing is
    cached or batched: each check is one call, because only the service knows what is left.
    """

    def __init__(
        self,
        target: str,
        *,
        tls: Tls | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        options: ChannelOptions = (),
    ) -> None:
        self.timeout = timeout
        """Seconds to wait for an answer, if the call does not say otherwise."""
        self._target = target
        self._credentials = None if tls is None else credentials(tls)
        self._options = channel_options(target, options)
        self._schedules = Schedules()
        self._opened: grpc.aio.Channel | None = None
        self._abandoned: set[asyncio.Task[None]] = set()

    async def check(self, check: Check, *, timeout: float | None = None) -> Verdict:
        """Asks whether a request may pass, and charges it if so.

        Raises `CheckError` if there is no verdict. The call is not retried, because it may have been counted.
        """
        method = self._channel().unary_unary(
            METHOD,
            request_serializer=rls_pb2.RateLimitRequest.SerializeToString,
            response_deserializer=rls_pb2.RateLimitResponse.FromString,
        )
        try:
            answer = await method(request_of(check), timeout=self._or_default(timeout))
        except grpc.RpcError as error:
            raise check_error(error) from error
        return verdict_of(check, answer)

    async def peek(self, check: Check, *, timeout: float | None = None) -> Verdict:
        """Reads the state of the limits, and charges nothing."""
        return await self.check(check.as_peek(), timeout=timeout)

    async def refund(self, check: Check, hits: int | None = None, *, timeout: float | None = None) -> Verdict:
        """Refunds what an allowed check charged, or `hits` for each descriptor."""
        return await self.check(check.as_refund(hits), timeout=timeout)

    async def acquire(self, check: Check, *, max_wait: float | None = None) -> Verdict:
        """Waits until a request may pass, for at most `max_wait` seconds.

        Tasks that wait for the same domain and descriptors are served in the order of their calls, and only the first
        of them asks. After a refusal all wait as long as the service says, and up to 10 % longer. A check that is in
        flight when `max_wait` ends is awaited, so the call can take longer by the timeout of a check.

        If the task is cancelled while a check is in flight, the check is awaited in the background, and refunded.

        Raises `WaitExceeded` if the request cannot pass in time; it is charged nowhere then. Raises `CheckError` if
        a check fails.
        """
        return await self._acquire(partial(self._schedules.join, check), check, "", max_wait)

    async def is_serving(self, *, timeout: float | None = None) -> bool:
        """Whether the service reports that it serves (gRPC health checking). Raises `CheckError` if it does not answer.

        It connects as well: call it at start with a longer timeout, and the first check need not wait for that.
        """
        method = self._channel().unary_unary(
            HEALTH_METHOD,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        request = health_pb2.HealthCheckRequest()
        try:
            answer = await method(request, timeout=self._or_default(timeout), wait_for_ready=True)
        except grpc.RpcError as error:
            raise check_error(error) from error
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        """Waits for refunds in the background, and closes the connection. The next call opens another."""
        if self._abandoned:
            await asyncio.wait(self._abandoned)
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _or_default(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def _channel(self) -> grpc.aio.Channel:
        if self._opened is None:
            if self._credentials is None:
                self._opened = grpc.aio.insecure_channel(self._target, self._options)
            else:
                self._opened = grpc.aio.secure_channel(self._target, self._credentials, self._options)
        return self._opened

    async def _acquire(
        self, join: Callable[[Waiter], Schedule], check: Check, priority: str, max_wait: float | None
    ) -> Verdict:
        deadline = deadline_after(max_wait)
        woken = _Signal()
        waiter = Waiter(priority, woken.set)
        schedule = join(waiter)
        allowed = abandoned = False
        try:
            await woken.wait(seconds_until(deadline))
            woken.clear()
            attempt = 0
            while True:
                schedule.require_turn(waiter)
                # Only the end of the schedule wakes a waiter that has the turn.
                if await woken.wait(schedule.pause(deadline)):
                    continue
                call = asyncio.ensure_future(self.check(check))
                try:
                    verdict = await asyncio.shield(call)
                except asyncio.CancelledError:
                    abandoned = True
                    self._abandon(self._settle(call, check, schedule, waiter))
                    raise
                if verdict.allowed:
                    allowed = True
                    return verdict
                schedule.refused(verdict, attempt)
                attempt += 1
        finally:
            if not abandoned:
                schedule.leave(waiter, allowed=allowed)

    def _abandon(self, settling: Awaitable[None]) -> None:
        task = asyncio.ensure_future(settling)
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)

    async def _settle(self, call: asyncio.Task[Verdict], check: Check, schedule: Schedule, waiter: Waiter) -> None:
        # The waiter keeps its turn until then, so that the next one does not ask beside it.
        try:
            with contextlib.suppress(CheckError):
                if (await call).allowed:
                    await self.refund(check)
        finally:
            schedule.leave(waiter, allowed=False)


class _Signal:
    """An event with a wait that neither raises at its timeout nor loses a cancellation."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._set = asyncio.get_running_loop().create_future()

    def set(self) -> None:
        if not self._set.done():
            self._set.set_result(None)

    async def wait(self, timeout: float | None) -> bool:
        await asyncio.wait([self._set], timeout=timeout)
        return self._set.done()


class AsyncPacer:
    """Runs jobs no faster than a limit of the service allows, for tasks of one event loop.

        pacer = AsyncPacer(client, Check("jobs", [{"provider": "mail"}]), weights={"interactive": 3, "batch": 1})
        await pacer.run(lambda: send(mail), priority="interactive")

    `weights` has the priorities. While jobs of several of them wait, they share the rate by their weights; jobs of one
    priority run in the order of their calls. Use one pacer for each limit in a process. Processes share the rate,
    because the limit is the service's.
    """

    def __init__(self, client: AsyncClient, check: Check, *, weights: Mapping[str, float] | None = None) -> None:
        self._client = client
        self._check = check
        self._schedule = Schedule(weights or {"": 1})

    async def run(self, job: Callable[[], Awaitable[T]], *, priority: str = "", max_wait: float | None = None) -> T:
        """Waits until the job may start, and awaits it. A task that is cancelled while it waits charges nothing.

        Raises `WaitExceeded` if it cannot start within `max_wait` seconds, `PacerClosed` if the pacer is closed before,
        and `CheckError` if a check fails. In all three cases the job does not run.
        """
        await self._client._acquire(self._schedule.join, self._check, priority, max_wait)
        return await job()

    def close(self) -> None:
        """Cancels the jobs that wait, with `PacerClosed`. Jobs that run are not affected."""
        self._schedule.close()
