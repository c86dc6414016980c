"""Requests to a rate limit service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from ._generated import rls_pb2

HITS_MAX = 2**64 - 1
"""The most hits of a descriptor."""


class Unit(IntEnum):
    """A unit of time. The values are the numbers of Envoy's API."""

    SECOND = 1
    MINUTE = 2
    HOUR = 3
    DAY = 4
    MONTH = 5
    """30 days in Sluicegate."""
    YEAR = 6
    """365 days in Sluicegate."""
    WEEK = 7
    """7 days. Envoy's API has no week for overrides; Sluicegate and envoyproxy/ratelimit accept it."""


@dataclass(frozen=True, kw_only=True)
class LimitOverride:
    """A limit that a request brings, in place of the limit of the matched rule.

    A window of 15 minutes is `LimitOverride(requests_per_unit=5, unit=Unit.MINUTE, unit_multiplier=15)`.
    """

    requests_per_unit: int
    """Requests per window."""
    unit: Unit
    """Unit of the window."""
    unit_multiplier: int = 1
    """Units per window."""


Entries: TypeAlias = "Mapping[str, str] | Iterable[tuple[str, str]]"
"""Keys and values of a descriptor, in order."""


@dataclass(frozen=True, init=False)
class Descriptor:
    """Entries to match with the rules, the outermost level first.

    Everywhere a `Descriptor` is accepted, so is a mapping: `{"tenant": "acme", "user": "bob"}`.
    """

    entries: tuple[tuple[str, str], ...]
    """Keys and values. Values may be empty."""
    limit: LimitOverride | None
    """Replaces the limit of the matched rule."""
    hits: int | None
    """Hits of this descriptor, in place of those of the check. 0 charges nothing; a negative number is a refund."""

    def __init__(self, entries: Entries, *, limit: LimitOverride | None = None, hits: int | None = None) -> None:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        object.__setattr__(self, "entries", tuple((key, value) for key, value in pairs))
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "hits", _valid(hits))


@dataclass(frozen=True, init=False)
class Check:
    """A question to the service: may a request with these descriptors pass?

    It passes if every descriptor is within its limits. If it passes, its hits are charged to all of them, else to none
    (with the server's default counting).

        Check("api", [{"user": "bob"}])

    Raises `ValueError` if there is no descriptor, or hits are beyond 64 bits.
    """

    domain: str
    """Selects the limits file."""
    descriptors: tuple[Descriptor, ...]
    """At least one."""
    hits: int
    """Hits of each descriptor that has none of its own. 0 charges nothing; a negative number is a refund."""

    def __init__(self, domain: str, descriptors: Iterable[Descriptor | Mapping[str, str]], *, hits: int = 1) -> None:
        given = tuple(it if isinstance(it, Descriptor) else Descriptor(it) for it in descriptors)
        if not given:
            raise ValueError("a check needs at least one descriptor")
        object.__setattr__(self, "domain", domain)
        object.__setattr__(self, "descriptors", given)
        object.__setattr__(self, "hits", _valid(hits))

    def as_peek(self) -> Check:
        """The same check, charging nothing."""
        return self._with_hits(0)

    def as_refund(self, hits: int | None = None) -> Check:
        """The refund of what this check charges, or of `hits` for each descriptor.

        Services that implement Envoy's API of before 1.38 charge the hits again.
        """
        if hits is not None:
            if hits < 1:
                raise ValueError("a refund needs at least one hit")
            return self._with_hits(-hits)
        own = [_with_hits(it, None if it.hits is None else -it.hits) for it in self.descriptors]
        return Check(self.domain, own, hits=-self.hits)

    def _with_hits(self, hits: int) -> Check:
        return Check(self.domain, [_with_hits(it, None) for it in self.descriptors], hits=hits)


def request_of(check: Check) -> rls_pb2.RateLimitRequest:
    """The message of a check."""
    # The request has a number of hits, where 0 means unset. Peeks, refunds and very many hits need the descriptors'.
    plain = 0 < check.hits < 2**32
    inherited = None if plain else check.hits
    return rls_pb2.RateLimitRequest(
        domain=_encodable(check.domain),
        descriptors=[_message(it, inherited) for it in check.descriptors],
        hits_addend=check.hits if plain else 0,
    )


def _valid(hits: int | None) -> int | None:
    if hits is not None and abs(hits) > HITS_MAX:
        raise ValueError(f"{hits} hits do not fit in 64 bits")
    return hits


def _with_hits(descriptor: Descriptor, hits: int | None) -> Descriptor:
    return Descriptor(descriptor.entries, limit=descriptor.limit, hits=hits)


def _message(descriptor: Descriptor, inherited: int | None) -> rls_pb2.RateLimitDescriptor:
    hits = inherited if descriptor.hits is None else descriptor.hits
    limit = descriptor.limit
    message = rls_pb2.RateLimitDescriptor(
        entries=[
            rls_pb2.RateLimitDescriptor.Entry(key=_encodable(key), value=_encodable(value))
            for key, value in descriptor.entries
        ],
        is_negative_hits=hits is not None and hits < 0,
    )
    if hits is not None:
        message.hits_addend.value = abs(hits)
    if limit is not None:
        message.limit.requests_per_unit = limit.requests_per_unit
        message.limit.unit = limit.unit  # type: ignore[assignment]
        if limit.unit_multiplier != 1:
            message.limit.unit_multiplier.value = limit.unit_multiplier
    return message


def _encodable(text: str) -> str:
    """The text, with `?` for each lone surrogate.

    End users can send these, for example as `\\ud800` in JSON. An error here would let them choose the failure mode.
    """
    return text.encode("utf-8", "replace").decode()
