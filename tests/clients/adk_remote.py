"""ADK's `RemoteA2aAgent`, which keeps what the last update of an artifact says.

`python adk_remote.py URL TOKEN AGENT COUNT` prints how many answers came whole, as JSON.
"""

import asyncio
import json
import sys
import warnings

import httpx

warnings.simplefilter("ignore")

from a2a.client import ClientConfig, ClientFactory  # noqa: E402
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.genai import types  # noqa: E402

ANSWER = "It is found in the third drawer."
SPEAKS = json.dumps(
    {
        "steps": [
            {"text": "I look it up.", "tool_calls": [{"name": "search", "arguments": {"q": "drawer"}}]},
            {"text": ANSWER, "chunks": 6},
        ]
    }
)


async def ask(web: httpx.AsyncClient, url: str, agent: str, number: int) -> None:
    """One turn; raises unless its last event has the whole answer."""
    card = f"{url}/a2a/{agent}/.well-known/agent-card.json"
    factory = ClientFactory(ClientConfig(httpx_client=web, streaming=True))
    remote = RemoteA2aAgent(name=f"remote_{number}", agent_card=card, a2a_client_factory=factory, httpx_client=web)
    runner = InMemoryRunner(agent=remote, app_name="asker")
    session = await runner.session_service.create_session(app_name="asker", user_id="ada")
    last = ""
    message = types.Content(role="user", parts=[types.Part(text=SPEAKS)])
    async for event in runner.run_async(user_id="ada", session_id=session.id, new_message=message):
        assert not event.error_message, event.error_message
        text = (
            "".join(part.text or "" for part in (event.content.parts or ()) if not part.thought)
            if event.content
            else ""
        )
        last = text or last
    assert last == ANSWER, last


async def main(url: str, token: str, agent: str, count: int) -> None:
    """Ask so often, ten at once."""
    slots, failures = asyncio.Semaphore(10), list[str]()
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=120) as web:

        async def one(number: int) -> None:
            async with slots:
                try:
                    await ask(web, url, agent.format(number % 10), number)
                except Exception as error:  # noqa: BLE001 -- whatever a client raises is what is counted
                    failures.append(f"{number}: {type(error).__name__}: {error}"[:500])

        await asyncio.gather(*(one(number) for number in range(count)))
    print(json.dumps({"asked": count, "whole": count - len(failures), "failures": failures[:5]}))


asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
