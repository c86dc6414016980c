"""Order and times of waiting requests, for threads and for asyncio."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeAlias

from ._check import Check
from ._errors import PacerClosed, WaitExceeded
from ._verdict import Verdict

BACKOFF_BASE = 0.1
"""Seconds of the first backoff."""
BACKOFF_MAX = 30.0
"""Seconds of the longest backoff, beside what the service asks for."""
JITTER_RATIO = 0.1
"""Share of the retry time that a waiter waits longer at most."""
JITTER_MIN = 0.001
"""Seconds that a waiter waits longer at least."""


def backoff(retry_after: float | None, attempt: int) -> float:
    """Seconds for a caller of a rate limited service to wait before it tries again.

    `retry_after` is what the service asked for (the header `Retry-After`), `attempt` the number of failures before
    this one, from 0. The time is never less than `retry_after`. Above it, it is random up to 100 ms, doubled with each
    attempt up to 30 s, so that callers that failed together do not come back together.
    """
    exponential = min(BACKOFF_BASE * 2 ** min(attempt, 16), BACKOFF_MAX)
    return (retry_after or 0.0) + random.uniform(0, exponential)


def pause_after(verdict: Verdict, attempt: int) -> float:
    """Seconds until the waiters for a limit ask again after a refusal."""
    if verdict.pause is None:
        return backoff(None, attempt)
    return verdict.pause + max(JITTER_MIN, random.uniform(0, JITTER_RATIO * verdict.pause))


class Waiter:
    """A place in the order of a `Schedule`."""

    def __init__(self, priority: str, wake: Callable[[], None]) -> None:
        self.priority = priority
        self.wake = wake
        """Called when the waiter gets its turn, and when the schedule closes."""


class Schedule:
    """Waiters for the same limit: one has the turn, and asks until it is allowed; the others wait behind it.

    Waiters of one priority are first in, first out; priorities share the turns by their weights.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        lock: threading.RLock | None = None,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        if not weights or not all(0 < weight < math.inf for weight in weights.values()):
            raise ValueError("weights must be positive")
        self._strides = {priority: 1 / weight for priority, weight in weights.items()}
        # Stride scheduling: the priority with the lowest position is next, and moves on by its stride.
        self._positions = dict.fromkeys(weights, 0.0)
        self._served = 0.0
        self._queues: dict[str, deque[Waiter]] = {priority: deque() for priority in weights}
        self._current: Waiter | None = None
        self._lock = lock or threading.RLock()
        self._on_idle = on_idle
        self._closed = False
        self._next_attempt = -math.inf

    def join(self, waiter: Waiter) -> Schedule:
        """Puts a waiter at the end of the order, and returns this schedule."""
        if waiter.priority not in self._queues:
            raise ValueError(f"unknown priority {waiter.priority!r}")
        with self._lock:
            queue = self._queues[waiter.priority]
            if not queue:
                # Turns that the priority did not need while it was idle are not made up for.
                self._positions[waiter.priority] = max(self._positions[waiter.priority], self._served)
            queue.append(waiter)
            self._next_turn()
        return self

    def leave(self, waiter: Waiter, *, allowed: bool) -> None:
        """Removes a waiter that was allowed, or gives up."""
        with self._lock:
            if allowed:
                self._positions[waiter.priority] += self._strides[waiter.priority]
            if self._current is waiter:
                self._current = None
                self._next_turn()
                if self._current is None:
                    self._on_idle()
            else:
                self._queues[waiter.priority].remove(waiter)

    def require_turn(self, waiter: Waiter) -> None:
        """Raises `PacerClosed`, or `WaitExceeded` if this waiter may not ask."""
        if self._closed:
            raise PacerClosed("the pacer was closed")
        if self._current is not waiter:
            raise WaitExceeded("other waiters were first")

    def refused(self, verdict: Verdict, attempt: int) -> None:
        """Notes how long all waiters pause."""
        self._next_attempt = time.monotonic() + pause_after(verdict, attempt)

    def pause(self, deadline: float) -> float:
        """Seconds until the waiter with the turn may ask. Raises `WaitExceeded` if that is after its deadline."""
        if self._next_attempt > deadline:
            raise WaitExceeded("no hits can pass within max_wait")
        return max(0.0, self._next_attempt - time.monotonic())

    def close(self) -> None:
        """Wakes all waiters with `PacerClosed`."""
        with self._lock:
            self._closed = True
            for waiter in [self._current, *(it for queue in self._queues.values() for it in queue)]:
                if waiter is not None:
                    waiter.wake()

    def _next_turn(self) -> None:
        waiting = [priority for priority, queue in self._queues.items() if queue]
        if self._current is None and waiting:
            priority = min(waiting, key=self._positions.__getitem__)
            self._served = self._positions[priority]
            self._current = self._queues[priority].popleft()
            self._current.wake()


_Key: TypeAlias = "tuple[str, tuple[tuple[tuple[str, str], ...], ...]]"


class Schedules:
    """The schedules of a client, by domain and descriptors. A schedule exists as long as it has waiters."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._schedules: dict[_Key, Schedule] = {}

    def join(self, check: Check, waiter: Waiter) -> Schedule:
        """Puts a waiter at the end of the order of its check, and returns the schedule."""
        key = (check.domain, tuple(descriptor.entries for descriptor in check.descriptors))
        with self._lock:
            if key not in self._schedules:
                self._schedules[key] = Schedule({"": 1}, self._lock, lambda: self._forget(key))
            return self._schedules[key].join(waiter)

    def _forget(self, key: _Key) -> None:
        del self._schedules[key]


def deadline_after(max_wait: float | None) -> float:
    """The monotonic time at which a waiter gives up."""
    return math.inf if max_wait is None else time.monotonic() + max_wait


def seconds_until(deadline: float) -> float | None:
    """Seconds until a deadline; `None` without one."""
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())
