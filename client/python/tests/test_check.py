"""Messages of checks."""

import pytest
from sluicegate import Check, Descriptor, LimitOverride, Unit
from sluicegate._check import request_of


def hits(check: Check) -> tuple[int, list[tuple[int | None, bool]]]:
    """Hits of the request, then hits and sign of each descriptor."""
    message = request_of(check)
    own = [
        (it.hits_addend.value if it.HasField("hits_addend") else None, it.is_negative_hits)
        for it in message.descriptors
    ]
    return message.hits_addend, own


PAIR = [{"a": "1"}, {"b": "2"}]


def test_hits_are_in_the_request_if_it_has_room_for_them() -> None:
    assert hits(Check("d", PAIR)) == (1, [(None, False)] * 2)
    assert hits(Check("d", PAIR, hits=3)) == (3, [(None, False)] * 2)
    assert hits(Check("d", PAIR, hits=2**32)) == (0, [(2**32, False)] * 2)
    assert hits(Check("d", PAIR, hits=-2)) == (0, [(2, True)] * 2)


def test_peek_and_refund_are_in_the_descriptors() -> None:
    check = Check("d", [{"a": "1"}, Descriptor({"b": "2"}, hits=7)], hits=3)
    assert hits(check) == (3, [(None, False), (7, False)])
    assert hits(check.as_peek()) == (0, [(0, False)] * 2)
    assert hits(check.as_refund()) == (0, [(3, True), (7, True)])
    assert hits(check.as_refund(2)) == (0, [(2, True)] * 2)


def test_entries_keep_their_order_and_may_repeat() -> None:
    entries = [("b", "1"), ("a", ""), ("b", "2")]
    message = request_of(Check("d", [Descriptor(entries)]))
    assert [(it.key, it.value) for it in message.descriptors[0].entries] == entries
    assert Descriptor({"a": "1"}) == Descriptor([("a", "1")])


def test_override_is_in_its_descriptor() -> None:
    minutes = LimitOverride(requests_per_unit=5, unit=Unit.MINUTE, unit_multiplier=15)
    second = LimitOverride(requests_per_unit=1, unit=Unit.SECOND)
    message = request_of(Check("d", [Descriptor({"a": "1"}, limit=minutes), Descriptor({"b": "2"}, limit=second)]))
    limits = [it.limit for it in message.descriptors]
    assert [(it.requests_per_unit, it.unit, it.unit_multiplier.value) for it in limits] == [(5, 2, 15), (1, 1, 0)]


def test_lone_surrogates_of_end_users_are_no_error() -> None:
    message = request_of(Check("d", [{"email": "eve\ud800@example.com"}]))
    assert message.descriptors[0].entries[0].value == "eve?@example.com"


def test_wrong_checks_are_rejected() -> None:
    with pytest.raises(ValueError, match="at least one descriptor"):
        Check("d", [])
    with pytest.raises(ValueError, match="64 bits"):
        Check("d", PAIR, hits=2**64)
    with pytest.raises(ValueError, match="at least one hit"):
        Check("d", PAIR).as_refund(0)
