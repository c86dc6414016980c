"""The client for threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TypeVar

import grpc
from grpc_health.v1 import health_pb2

from ._check import Check, request_of
from ._connection import DEFAULT_TIMEOUT, HEALTH_METHOD, METHOD, ChannelOptions, Tls, channel_options, credentials
from ._errors import check_error
from ._generated import rls_pb2
from ._pacing import Schedule, Schedules, Waiter, deadline_after, seconds_until
from ._verdict import Verdict, verdict_of

T = TypeVar("T")


class Client:
    """A connection to a rate limit service, shared by all threads.

        with Client("127.0.0.1:8081") as client:
            verdict = client.check(Check("api", [{"user": "bob"}]))

    `target` is `host:port`, or `unix:/path` for a socket. `tls` encrypts the connection; `Tls()` trusts the CAs of the
    system. `timeout` is the longest time in seconds to wait for an answer. `options` are gRPC channel arguments.

    The connection is made with the first call, so a client can be created before the process forks. Nothing is cached
    or batched: each check is one call, because only the service knows what is left.
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
        self._lock = threading.Lock()
        self._opened: tuple[int, grpc.Channel] | None = None

    def check(self, check: Check, *, timeout: float | None = None) -> Verdict:
        """Asks whether a request may pass, and charges it if so.

        Raises `CheckError` if there is no verdict. The call is not retried, because it may have been counted.
        """
        method = self._channel().unary_unary(
            METHOD,
            request_serializer=rls_pb2.RateLimitRequest.SerializeToString,
            response_deserializer=rls_pb2.RateLimitResponse.FromString,
        )
        try:
            answer = method(request_of(check), timeout=self._or_default(timeout))
        except grpc.RpcError as error:
            raise check_error(error) from error
        return verdict_of(check, answer)

    def peek(self, check: Check, *, timeout: float | None = None) -> Verdict:
        """Reads the state of the limits, and charges nothing."""
        return self.check(check.as_peek(), timeout=timeout)

    def refund(self, check: Check, hits: int | None = None, *, timeout: float | None = None) -> Verdict:
        """Refunds what an allowed check charged, or `hits` for each descriptor."""
        return self.check(check.as_refund(hits), timeout=timeout)

    def acquire(self, check: Check, *, max_wait: float | None = None) -> Verdict:
        """Waits until a request may pass, for at most `max_wait` seconds.

        Threads that wait for the same domain and descriptors are served in the order of their calls, and only the first
        of them asks. After a refusal all wait as long as the service says, and up to 10 % longer. A check that is in
        flight when `max_wait` ends is awaited, so the call can take longer by the timeout of a check.

        Raises `WaitExceeded` if the request cannot pass in time; it is charged nowhere then. Raises `CheckError` if
        a check fails.
        """
        return self._acquire(partial(self._schedules.join, check), check, "", max_wait)

    def is_serving(self, *, timeout: float | None = None) -> bool:
        """Whether the service reports that it serves (gRPC health checking). Raises `CheckError` if it does not answer.

        It connects as well: call it at start with a longer timeout, and the first check need not wait for that.
        """
        method = self._channel().unary_unary(
            HEALTH_METHOD,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = method(health_pb2.HealthCheckRequest(), timeout=self._or_default(timeout), wait_for_ready=True)
        except grpc.RpcError as error:
            raise check_error(error) from error
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Closes the connection. The next call opens another."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            opened[1].close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _or_default(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def _channel(self) -> grpc.Channel:
        with self._lock:
            # A channel does not survive a fork.
            if self._opened is None or self._opened[0] != os.getpid():
                if self._credentials is None:
                    channel = grpc.insecure_channel(self._target, self._options)
                else:
                    channel = grpc.secure_channel(self._target, self._credentials, self._options)
                self._opened = (os.getpid(), channel)
            return self._opened[1]

    def _acquire(
        self, join: Callable[[Waiter], Schedule], check: Check, priority: str, max_wait: float | None
    ) -> Verdict:
        deadline = deadline_after(max_wait)
        woken = threading.Event()
        waiter = Waiter(priority, woken.set)
        schedule = join(waiter)
        allowed = False
        try:
            woken.wait(seconds_until(deadline))
            woken.clear()
            attempt = 0
            while True:
                schedule.require_turn(waiter)
                # Only the end of the schedule wakes a waiter that has the turn.
                if woken.wait(schedule.pause(deadline)):
                    continue
                verdict = self.check(check)
                if verdict.allowed:
                    allowed = True
                    return verdict
                schedule.refused(verdict, attempt)
                attempt += 1
        finally:
            schedule.leave(waiter, allowed=allowed)


class Pacer:
    """Runs jobs no faster than a limit of the service allows, for worker threads.

        pacer = Pacer(client, Check("jobs", [{"provider": "mail"}]), weights={"interactive": 3, "batch": 1})
        pacer.run(lambda: send(mail), priority="interactive")

    `weights` has the priorities. While jobs of several of them wait, they share the rate by their weights; jobs of one
    priority run in the order of their calls. Use one pacer for each limit in a process. Processes share the rate,
    because the limit is the service's.
    """

    def __init__(self, client: Client, check: Check, *, weights: Mapping[str, float] | None = None) -> None:
        self._client = client
        self._check = check
        self._schedule = Schedule(weights or {"": 1})

    def run(self, job: Callable[[], T], *, priority: str = "", max_wait: float | None = None) -> T:
        """Waits until the job may start, and runs it in this thread.

        Raises `WaitExceeded` if it cannot start within `max_wait` seconds, `PacerClosed` if the pacer is closed before,
        and `CheckError` if a check fails. In all three cases the job does not run.
        """
        self._client._acquire(self._schedule.join, self._check, priority, max_wait)
        return job()

    def close(self) -> None:
        """Cancels the jobs that wait, with `PacerClosed`. Jobs that run are not affected."""
        self._schedule.close()
