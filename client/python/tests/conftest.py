"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server for tests that use keys of their own."""
    with serving() as running:
        yield running
