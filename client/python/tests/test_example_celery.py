"""examples/workers/celery."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from celery import Celery
from support import REPOSITORY, line_of, redis, serving, started, until

EXAMPLE = REPOSITORY / "examples/workers/celery"

JOBS = 300
RATE = 10
WORKERS = 4
BURST = WORKERS + 1
"""Burst of the provider: admitted requests of several workers may arrive together, one of each worker."""


class Provider:
    """A provider with its own limit: GCRA, 10 requests a second."""

    def __init__(self) -> None:
        self.url = ""
        self.times: list[float] = []
        self.jobs: set[int] = set()
        self.refused = 0
        self._free_at = 0.0
        self._lock = threading.Lock()

    def status(self, job: int) -> int:
        """The status for a call now."""
        with self._lock:
            now = time.monotonic()
            free_at = max(self._free_at, now) + 1 / RATE
            if free_at - now > BURST / RATE:
                self.refused += 1
                return 429
            self._free_at = free_at
            self.times.append(now)
            self.jobs.add(job)
            return 200


@contextmanager
def provider() -> Iterator[Provider]:
    it = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(it.status(int(self.rfile.read(int(self.headers["content-length"])))))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        it.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield it
        finally:
            server.shutdown()
            thread.join()


def test_provider_refuses_what_is_too_fast() -> None:
    it = Provider()
    assert [it.status(job) for job in range(BURST + 1)] == [200] * BURST + [429]


def test_300_jobs_meet_no_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--dynamic-metadata"]
    with provider() as mail, redis() as (_, port), serving(EXAMPLE / "limits.yaml", *flags) as server:
        broker = f"redis://127.0.0.1:{port}/0"
        addresses = {"REDIS": broker, "PROVIDER": mail.url, "SLUICEGATE": server.grpc, "SLUICEGATE_TIMEOUT": "10"}
        command = [sys.executable, "-m", "celery", "--app", "tasks", "worker", "--concurrency", str(WORKERS)]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO"]
        with started([*command, *quiet], {**os.environ, **addresses}, EXAMPLE) as (process, log):
            line_of(process, log, "ready")
            with Celery(broker=broker) as celery:
                for job in range(JOBS):
                    celery.send_task("tasks.send", [job])
            until("all jobs", lambda: len(mail.jobs) == JOBS or mail.refused, 300)
            assert mail.refused == 0, log.read_text()
    took = mail.times[-1] - mail.times[0]
    within_a_second = max(sum(begin <= at < begin + 1 for at in mail.times) for begin in mail.times)
    with capsys.disabled():
        print(f"\nCelery: {JOBS} jobs took {took:.1f} s, at most {within_a_second} in a second, none refused")
    assert len(mail.times) == JOBS
    # Never faster than the limit. How much slower depends on the machine.
    assert took >= (JOBS - BURST) / RATE
