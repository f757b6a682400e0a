"""The canonical form of an action against RFC 8785, and what it refuses."""

import json
import struct
from decimal import Decimal
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from turnstile.schema.base import JsonObject
from turnstile.schema.people.digests import NotCanonical, action_digest, canonical

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=12,
)

APPENDIX_B = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]
"""RFC 8785, appendix B: the bits of a double, and its text."""


@pytest.mark.parametrize(("bits", "text"), APPENDIX_B)
def test_doubles_are_written_as_the_rfc_lists_them(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == text.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000"])
def test_nan_and_infinity_are_refused(bits: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(NotCanonical):
        canonical(number)


def test_the_example_of_the_rfc_has_its_canonical_form() -> None:
    given = r"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"""
    wanted = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(json.loads(given)).decode() == wanted


def test_members_are_sorted_by_utf_16_code_units() -> None:
    names = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    sorted_values = [
        *("Carriage Return", "One", "Control", "Latin Small Letter O With Diaeresis", "Euro Sign"),
        *("Emoji: Grinning Face", "Hebrew Letter Dalet With Dagesh"),
    ]
    assert list(json.loads(canonical(cast("JsonObject", names))).values()) == sorted_values


@given(JSON)
def test_the_form_holds_the_same_value_and_is_its_own_form(value: JsonValue) -> None:
    once = canonical(value)
    assert json.loads(once, parse_int=float) == value
    assert canonical(json.loads(once)) == once


@pytest.mark.parametrize("number", [2**53 + 1, 2**60, -(2**64), 10**400, 12345678901234567890])
def test_integers_that_a_double_would_write_otherwise_are_refused(number: int) -> None:
    with pytest.raises(NotCanonical, match="pass it as text"):
        action_digest("c", "t", "s", {"deep": [{"amount": number}]})


@pytest.mark.parametrize("number", [1e21, 1e300, 123456789012345680000.0, 9007199254740992.0, 1.5e-9, 5e-324, 0.1])
def test_a_number_has_one_digest_before_and_after_postgres_wrote_it_out(number: float) -> None:
    written_out = json.loads(f"{Decimal(repr(number)):f}")
    assert action_digest("c", "t", "s", {"n": number}) == action_digest("c", "t", "s", {"n": written_out})


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(NotCanonical):
        canonical({"text": "\ud800"})
    with pytest.raises(NotCanonical):
        canonical({"\ud800": 1})


def test_too_deep_a_value_is_refused() -> None:
    deep: JsonValue = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotCanonical):
        canonical(deep)


def test_each_part_of_an_action_counts() -> None:
    first = action_digest("call", "tool", "subject", {"a": 1})
    others = [
        action_digest("call2", "tool", "subject", {"a": 1}),
        action_digest("call", "tool2", "subject", {"a": 1}),
        action_digest("call", "tool", "subject2", {"a": 1}),
        action_digest("call", "tool", "subject", {"a": 2}),
        action_digest("call", "tool", "subject", {"a": True}),
        action_digest("call", "tool", "subject", {"a": "1"}),
        action_digest("call", "tool", "subject", {"a": 1, "b": None}),
    ]
    assert len({first, *others}) == 8
    assert first == action_digest("call", "tool", "subject", {"a": 1.0})
    assert len(first) == 64
