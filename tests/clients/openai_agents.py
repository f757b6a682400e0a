"""The `openai-agents` package over Responses: an agent with server tools, streamed, in a session of three turns.

`python openai_agents.py URL TOKEN AGENT COUNT` prints how many conversations came whole, as JSON.
"""

import asyncio
import json
import sys

from agents import Agent, ItemHelpers, OpenAIResponsesModel, Runner, set_tracing_disabled
from agents.items import MessageOutputItem
from openai import AsyncOpenAI

LOOK, ANSWER = "I look it up.", "It is found in the third drawer."
SPEAKS = json.dumps(
    {
        "steps": [
            {"text": LOOK, "tool_calls": [{"name": "search", "arguments": {"q": "drawer"}}]},
            {"text": ANSWER, "chunks": 6},
        ]
    }
)
MIRRORS = json.dumps({"steps": []})


async def converse(agent: Agent, number: int) -> None:
    """Three turns, each with the items of those before as its input; raises where something is not whole."""
    streamed = Runner.run_streamed(agent, SPEAKS)
    deltas = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            deltas += event.data.delta
    assert streamed.final_output == ANSWER, streamed.final_output
    assert deltas == f"{LOOK}\n\n{ANSWER}", deltas
    said = [
        ItemHelpers.text_message_output(new_item)
        for new_item in streamed.new_items
        if isinstance(new_item, MessageOutputItem)
    ]
    assert len(said) == 2, said
    calls = [new_item for new_item in streamed.new_items if new_item.type == "tool_call_item"]
    assert [call.raw_item.type for call in calls] == ["mcp_call"], calls
    second = await Runner.run(agent, [*streamed.to_input_list(), {"role": "user", "content": SPEAKS}])
    assert second.final_output == ANSWER, second.final_output
    third = await Runner.run(agent, [*second.to_input_list(), {"role": "user", "content": MIRRORS}])
    messages = json.loads(third.final_output)["messages"]
    roles = [role for role, _ in messages if role != "system"]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2 + ["user"], roles


async def main(url: str, token: str, agent: str, count: int) -> None:
    """Ask so often, ten at once."""
    set_tracing_disabled(True)
    slots, failures = asyncio.Semaphore(10), list[str]()
    async with AsyncOpenAI(base_url=f"{url}/openai/v1", api_key=token, max_retries=0, timeout=120) as client:

        async def one(number: int) -> None:
            named = agent.format(number % 10)
            made = Agent(name="asker", model=OpenAIResponsesModel(model=named, openai_client=client))
            async with slots:
                try:
                    await converse(made, number)
                except Exception as error:  # noqa: BLE001 -- whatever a client raises is what is counted
                    failures.append(f"{number}: {type(error).__name__}: {error}"[:500])

        await asyncio.gather(*(one(number) for number in range(count)))
    print(json.dumps({"asked": count, "whole": count - len(failures), "failures": failures[:5]}))


asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
