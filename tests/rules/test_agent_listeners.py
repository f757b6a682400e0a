"""An agent of the roster that no turn could be asked for is found when the program starts, not when it is asked."""

from typing import Any

import pytest

from turnstile.rules.routing import turn_settings
from turnstile.schema.ids import AgentId
from turnstile.schema.pump.listeners import BadListener, Listener, Registry
from turnstile.schema.pump.payloads import Payload


class Ask(Payload):
    """For the agent."""

    text: str


class Other(Payload):
    """For its peer."""

    text: str


def agent(name: str = "a", payload: type[Payload] = Ask, **fields: Any) -> Listener:
    """A listener of the roster."""
    known: dict[str, Any] = {"description": "It talks.", "agent_id": AgentId(name), "agent": True}
    return Listener(name=name, payload=payload, **{**known, **fields})


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ä", "x" * 129])
def test_an_agents_id_is_a_token(name: str) -> None:
    with pytest.raises(BadListener, match="listener 'a': agent_id must be 1 to 128"):
        Registry([agent(agent_id=AgentId(name))])


def test_a_description_is_not_too_long_for_a_tool() -> None:
    registry = Registry([agent(peers=("b",)), agent("b", Other, description="d" * 20_000)])
    with pytest.raises(BadListener, match=r"listener 'a': its agent cannot be asked .* description: ") as told:
        turn_settings(registry, registry.listeners["a"])
    assert "ddd" not in str(told.value)


def test_an_agent_remembers() -> None:
    registry = Registry([agent(peers=("a", "b")), agent("b", Other)])
    found = turn_settings(registry, registry.listeners["a"])
    assert [choice.name for choice in found.choices] == ["send_b", "respond", "think"]
    assert found.remember
