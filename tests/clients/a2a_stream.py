"""The official client of A2A, streaming: what it folds, and the state that its stream ends with.

`python a2a_stream.py URL TOKEN AGENT COUNT` prints how many answers came whole, as JSON.
"""

import asyncio
import json
import sys
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Role, SendMessageRequest, TaskState

ANSWER = "It is found in the third drawer."
SPEAKS = json.dumps(
    {
        "steps": [
            {"text": "I look it up.", "tool_calls": [{"name": "search", "arguments": {"q": "drawer"}}]},
            {"text": ANSWER, "chunks": 6},
        ]
    }
)


async def ask(web: httpx.AsyncClient, url: str, agent: str) -> None:
    """One turn; raises unless the stream ends COMPLETED, after the whole answer."""
    card = await A2ACardResolver(web, f"{url}/a2a/{agent}").get_agent_card()
    client = ClientFactory(ClientConfig(httpx_client=web, streaming=True)).create(card)
    message = Message(message_id=str(uuid4()), role=Role.ROLE_USER)
    message.parts.add(text=SPEAKS)
    text, last, state = "", "", TaskState.TASK_STATE_UNSPECIFIED
    async for event in client.send_message(SendMessageRequest(message=message)):
        if event.HasField("artifact_update"):
            last = "".join(part.text for part in event.artifact_update.artifact.parts)
            text = text + last if event.artifact_update.append else last
        elif event.HasField("status_update"):
            state = event.status_update.status.state
    assert (text, last, TaskState.Name(state)) == (ANSWER, ANSWER, "TASK_STATE_COMPLETED"), (text, last, state)


async def main(url: str, token: str, agent: str, count: int) -> None:
    """Ask so often, ten at once."""
    slots, failures = asyncio.Semaphore(10), list[str]()
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=120) as web:

        async def one(number: int) -> None:
            async with slots:
                try:
                    await ask(web, url, agent.format(number % 10))
                except Exception as error:  # noqa: BLE001 -- whatever a client raises is what is counted
                    failures.append(f"{number}: {type(error).__name__}: {error}"[:500])

        await asyncio.gather(*(one(number) for number in range(count)))
    print(json.dumps({"asked": count, "whole": count - len(failures), "failures": failures[:5]}))


asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
