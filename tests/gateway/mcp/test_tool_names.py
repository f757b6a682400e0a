"""Names of tools lead back to whom they ask, and no two are one."""

from hypothesis import assume, given
from hypothesis import strategies as st
from mcp.shared.tool_name_validation import validate_tool_name

from turnstile.gateway.mcp.tool_names import LONGEST, TURN_GET, TURN_STOP, named_by, tool_name

agents = st.from_regex(r"(agent_|profile_|turn_)?[A-Za-z0-9_-]{1,119}", fullmatch=True)
profiles = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128).map(
    lambda name: f"profile:{name}"
)
named = agents | profiles


@given(named)
def test_each_name_leads_back_and_is_one_of_mcp(one: str) -> None:
    name = tool_name(one)
    if name is None:
        assert one.startswith("profile:")
        return
    assert validate_tool_name(name).is_valid
    assert name not in (TURN_GET, TURN_STOP)
    assert named_by(name) == one


@given(named, named)
def test_no_two_have_one_name(one: str, other: str) -> None:
    assume(one != other)
    assert tool_name(one) is None or tool_name(one) != tool_name(other)


@given(st.text(max_size=140) | st.from_regex(r"(agent_|profile_|turn_)[A-Za-z0-9_.-]{0,130}", fullmatch=True))
def test_what_leads_somewhere_is_the_name_of_it(tool: str) -> None:
    found = named_by(tool)
    assert found is None or tool_name(found) == tool


def test_a_name_that_would_be_too_long_is_none() -> None:
    assert tool_name("a" * LONGEST) == "a" * LONGEST
    assert tool_name("turn_" + "a" * 118) is None
    assert tool_name("profile:" + "ä" * 21) is None
