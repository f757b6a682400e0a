"""What MCP servers ask in mid-call is asked of people; what nobody waits for is canceled (protocol §13.8, §17.1)."""

import asyncio

import pytest

from tests.e2e.mcp.conftest import House, results
from tests.e2e.mcp.test_mcp_pins import NOTHING, listed
from tests.e2e.tools.test_progress import watching
from tests.support.conditions import until
from tests.support.people import Person
from turnstile.schema.people.approvals import Decision


@pytest.mark.parametrize("generation", ["2026-07-28", pytest.param("2025-11-25", marks=pytest.mark.long)])
async def test_a_server_asks_a_person_in_the_middle_of_a_call(house: House, generation: str) -> None:
    await house.add("kind", given=("--sessions",) if generation == "2025-11-25" else ())
    agent, person = await house.agent("kind__book"), Person(house.tenant)
    async with house.served("kind"):
        turn = await house.start(agent, ("kind__book", NOTHING))
        [asked] = await person.asked()
        assert asked.message == "The MCP server kind asks (kind__book): How many seats?"
        assert await person.refusal(asked, Decision.RESPOND, response={"seats": "many"}) == "invalid_response"
        await person.decide(asked, Decision.RESPOND, response={"seats": 2})
        [booked] = results(await house.tenant.ended(turn, 30))
        assert booked["result"] == {"value": '{"seats": 2, "window": false}'}
        turn = await house.start(agent, ("kind__book", NOTHING))
        [asked] = await person.asked()
        await person.decide(asked, Decision.REJECT, message="no")
        [declined] = results(await house.tenant.ended(turn, 30))
        assert declined["result"] == {"value": '{"action": "decline"}'}


async def test_how_far_a_server_is_is_told_as_an_event_of_the_turn(house: House) -> None:
    await house.rough("desk", listed(walk="Walk."), {"walk": "step"})
    agent = await house.agent("desk__walk")
    async with house.served("desk"), watching(house.tenant) as heard:
        [walked] = await house.play(agent, ("desk__walk", NOTHING))
        told = (await asyncio.wait_for(heard.get(), 10)).metadata
    assert walked["status"] == "success"
    assert (told["tool_name"], told["progress"], told["total"], told["message"]) == ("desk__walk", 3, 4, "nearly")


async def test_a_call_that_nobody_waits_for_is_canceled_at_the_server(house: House) -> None:
    await house.rough("desk", listed(sit="Sit."), {"sit": "hang"})
    agent = await house.agent("desk__sit")
    async with house.served("desk"):
        turn = await house.start(agent, ("desk__sit", NOTHING))

        async def said(line: str) -> bool:
            return line in house.said()

        await until(lambda: said("call sit"), 30, "the server is called")
        reply = await house.tenant.client.request("stop", {"agent_turn_id": turn})
        assert reply["status"] == "accepted", reply
        await until(lambda: said("canceled"), 30, "the server is told")
    assert (await house.tenant.ended(turn)).view.status == "canceled"
