"""examples/apps/fastapi."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import httpx
import pytest
from support import REPOSITORY, line_of, serving, started

EXAMPLE = REPOSITORY / "examples/apps/fastapi"


@pytest.fixture(scope="module")
def browser() -> Iterator[httpx.Client]:
    with serving(EXAMPLE / "limits.yaml", "--response-headers", "ratelimit-draft-11") as server:
        command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0", "--no-proxy-headers"]
        environment = {**os.environ, "SLUICEGATE": server.grpc, "SLUICEGATE_TIMEOUT": "10", "TRUSTED_PROXIES": "1"}
        with started(command, environment, EXAMPLE) as (process, log):
            address = line_of(process, log, r"running on (http://\S+)")[1]
            with httpx.Client(base_url=address, timeout=60) as it:
                yield it


def statuses(
    browser: httpx.Client, count: int, address: str, method: str = "GET", path: str = "/", **more: object
) -> list[int]:
    headers = {"x-forwarded-for": f"6.6.6.6, {address}", **more.pop("headers", {})}  # type: ignore[dict-item]
    return [browser.request(method, path, headers=headers, **more).status_code for _ in range(count)]  # type: ignore[arg-type]


def test_address_has_100_requests_a_minute(browser: httpx.Client) -> None:
    assert statuses(browser, 102, "10.0.0.1") == [200] * 100 + [429] * 2
    assert statuses(browser, 1, "10.0.0.2") == [200]


def test_login_has_5_attempts_for_an_address(browser: httpx.Client) -> None:
    def login(email: str, count: int, address: str) -> list[int]:
        return statuses(browser, count, address, "POST", "/login", json={"email": email, "password": "guess"})

    assert login("eve@example.com", 6, "10.0.1.1") == [401] * 5 + [429]
    # From another address, with the e-mail in another spelling.
    assert login(" Eve@Example.com", 1, "10.0.1.2") == [429]
    assert login("bob@example.com", 1, "10.0.1.1") == [401]


def test_tier_of_the_api_key_decides(browser: httpx.Client) -> None:
    def report(key: str | None, count: int, address: str) -> list[int]:
        headers = {} if key is None else {"x-api-key": key}
        return statuses(browser, count, address, "GET", "/api/report", headers=headers)

    assert report("key-free", 11, "10.0.2.1") == [200] * 10 + [429]
    assert report("key-pro", 61, "10.0.2.1") == [200] * 60 + [429]
    assert report("key-enterprise", 150, "10.0.2.1") == [200] * 150
    assert report(None, 1, "10.0.2.1") == [401]
    # All unknown keys share the limit of the address.
    assert [report(f"guess-{at}", 1, "10.0.2.2")[0] for at in range(101)] == [401] * 100 + [429]


def test_refusal_says_when_to_come_back(browser: httpx.Client) -> None:
    for _ in range(6):
        answer = browser.post("/login", json={"email": "mallory@example.com", "password": "guess"})
    assert answer.status_code == 429 and answer.headers["content-type"] == "application/problem+json"
    assert 0 < int(answer.headers["retry-after"]) <= 900
    assert "per_account" in answer.headers["ratelimit"]
