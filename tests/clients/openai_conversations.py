"""Conversations that a client keeps: `OpenAIConversationsSession` of `openai-agents`, and `client.conversations`.

`python openai_conversations.py URL TOKEN AGENT COUNT` prints how many conversations came whole, as JSON.
"""

import asyncio
import json
import sys

from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI, NotFoundError

ANSWER = "It is found in the third drawer."
SPEAKS = json.dumps(
    {
        "steps": [
            {"text": "I look it up.", "tool_calls": [{"name": "search", "arguments": {"q": "drawer"}}]},
            {"text": ANSWER},
        ]
    }
)
MIRRORS = json.dumps({"steps": []})
TURN = ["user", "assistant", "tool", "assistant"]


async def run_in_a_session(agent: Agent, client: AsyncOpenAI) -> None:
    """Two turns in a session, what it keeps of them, and its end; raises where something is not whole."""
    session = OpenAIConversationsSession(openai_client=client)
    assert (await Runner.run(agent, SPEAKS, session=session)).final_output == ANSWER
    items = await session.get_items()
    kinds = [item["type"] for item in items]
    assert kinds == ["message", "message", "mcp_call", "message"], kinds
    streamed = Runner.run_streamed(agent, MIRRORS, session=session)
    async for _ in streamed.stream_events():
        pass
    roles = [role for role, _ in json.loads(streamed.final_output)["messages"] if role != "system"]
    assert roles == [*TURN, "user"], roles
    assert await session.get_items(limit=2) == (await session.get_items())[-2:]
    last = await session.pop_item()
    assert last is not None
    assert last["role"] == "assistant", last
    assert [item["type"] for item in await session.get_items()] == [*kinds, "message"]
    again = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=client)
    assert await again.get_items() == await session.get_items()
    await session.clear_session()


async def keep_by_hand(client: AsyncOpenAI, agent: str) -> None:
    """Every call of `client.conversations`, and a turn in between; raises where something is not whole."""
    said = [{"role": "user", "content": f"line {number}"} for number in range(3)]
    kept = await client.conversations.create(metadata={"topic": "drawers"}, items=said)
    name = kept.id
    assert (await client.conversations.retrieve(name)).metadata == {"topic": "drawers"}
    changed = await client.conversations.update(name, metadata={"topic": "doors"})
    assert (changed.id, changed.metadata, changed.created_at) == (name, {"topic": "doors"}, kept.created_at)
    added = await client.conversations.items.create(
        name, items=[{"role": "assistant", "content": "noted"}, {"role": "user", "content": "wrong"}]
    )
    assert [item.role for item in added.data] == ["assistant", "user"], added
    first = await client.conversations.items.retrieve(added.data[1].id, conversation_id=name)
    assert first.content[0].text == "wrong", first
    await client.conversations.items.delete(added.data[1].id, conversation_id=name)
    texts = [item.content[0].text async for item in client.conversations.items.list(name, order="asc", limit=2)]
    assert texts == ["line 0", "line 1", "line 2", "noted"], texts
    page = await client.conversations.items.list(name, limit=1)
    assert (page.has_more, page.data[0].content[0].text) == (True, "noted"), page
    answer = await client.responses.create(model=agent, input=MIRRORS, conversation=name)
    roles = [role for role, _ in json.loads(answer.output_text)["messages"] if role != "system"]
    assert roles == ["user", "assistant", "user"], roles  # what a speaker said in a row is one message
    assert len([item async for item in client.conversations.items.list(name)]) == 6
    assert (await client.conversations.delete(name)).deleted
    try:
        await client.conversations.retrieve(name)
    except NotFoundError:
        return
    raise AssertionError("a deleted conversation is there")


async def main(url: str, token: str, agent: str, count: int) -> None:
    """Ask so often, ten at once."""
    set_tracing_disabled(True)
    slots, failures = asyncio.Semaphore(10), list[str]()
    async with AsyncOpenAI(base_url=f"{url}/openai/v1", api_key=token, max_retries=0, timeout=120) as client:

        async def one(number: int) -> None:
            named = agent.format(number % 10)
            asker = Agent(name="asker", model=OpenAIResponsesModel(model=named, openai_client=client))
            async with slots:
                try:
                    await run_in_a_session(asker, client)
                    await keep_by_hand(client, named)
                except Exception as error:  # noqa: BLE001 -- whatever a client raises is what is counted
                    failures.append(f"{number}: {type(error).__name__}: {error}"[:500])

        await asyncio.gather(*(one(number) for number in range(count)))
    print(json.dumps({"asked": count, "whole": count - len(failures), "failures": failures[:5]}))


asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
