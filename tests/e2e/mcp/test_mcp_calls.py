"""Calls of MCP servers' tools: added, served, called by agents (protocol §17.1)."""

from tests.e2e.mcp.conftest import House


async def test_a_server_that_is_added_answers_the_calls_of_agents(house: House) -> None:
    added = await house.add("kind")
    assert "MCP server kind: 6 tools" in added.out
    agent = await house.agent("kind__add", "kind__echo", "kind__fail")
    async with house.served("kind"):
        calls = ("kind__add", {"a": 2, "b": 3}), ("kind__echo", {"text": "hi"}), ("kind__fail", {})
        [sum_, echo, fail] = await house.play(agent, *calls)
    assert sum_["result"] == {"value": {"result": 5}}
    assert echo["result"] == {"value": "hi"}
    assert (fail["status"], fail["error"]["code"]) == ("failed", "tool_error")
    assert "broken" in fail["error"]["message"]
