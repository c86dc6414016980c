"""Real servers for the tests."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

T = TypeVar("T")

CLIENT = Path(__file__).parents[1]
REPOSITORY = CLIENT.parents[1]

LIMITS = """
domain: api
descriptors:
  - key: user
    rate_limit: {requests_per_unit: 3, unit: hour, algorithm: sliding_window_log}
  - key: job
    rate_limit: {requests_per_unit: 50, unit: second, algorithm: gcra, burst: 1}
  - key: slow
    rate_limit: {requests_per_unit: 1, unit: hour, algorithm: gcra}
"""


def binary() -> Path:
    """The server's binary."""
    return Path(os.environ.get("SLUICEGATE_BINARY") or REPOSITORY / "target/debug/sluicegate").absolute()


def until(what: str, condition: Callable[[], T | None], seconds: float = 60) -> T:
    """Waits for a condition that is neither false nor `None`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.01)
    raise AssertionError(f"waited {seconds} s for {what}")


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Server:
    """A running `sluicegate serve`."""

    def __init__(self, process: subprocess.Popen[bytes], grpc: str, http: str) -> None:
        self.process = process
        self.grpc = grpc
        self.http = http

    def metric(self, series: str) -> float:
        """The value of a series; 0 if there is none."""
        with urlopen(f"http://{self.http}/metrics") as page:
            found = re.search(rf"^{re.escape(series)} (\S+)$", page.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0


@contextmanager
def started(
    command: list[str], environment: dict[str, str] | None = None, cwd: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process in this environment, by default that of the tests, and the file of its output."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, env=environment)
        try:
            yield process, log
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def line_of(process: subprocess.Popen[bytes], log: Path, pattern: str) -> re.Match[str]:
    """Waits for a line of a process's output."""

    def found() -> re.Match[str] | None:
        text = log.read_text(errors="replace")
        match = re.search(pattern, text)
        if match is None and process.poll() is not None:
            raise AssertionError(f"{process.args!r} ended:\n{text}")
        return match

    return until(f"the line {pattern!r}", found)


@contextmanager
def serving(limits: str | Path = LIMITS, *flags: str, grpc: str = "127.0.0.1:0") -> Iterator[Server]:
    """A server with these limits, as text or as a path, on free ports."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "limits.yaml"
        if isinstance(limits, str):
            file.write_text(limits)
        else:
            file = limits
        listen = ["--grpc-listen", grpc, "--http-listen", "127.0.0.1:0", "--admin-listen", "off"]
        command = [str(binary()), "serve", "--limits", str(file), *listen, "--drain-delay", "0s", *flags]
        with started(command, environment) as (process, log):
            line = line_of(process, log, r"serving grpc=(\S+) http=(\S+)")
            yield Server(process, line[1], line[2])


@contextmanager
def redis() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A Redis server and its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        with started(command) as (process, log):
            line_of(process, log, "Ready to accept connections")
            yield process, port
