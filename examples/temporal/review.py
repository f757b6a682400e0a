"""A workflow of yours that asks three critics at once, and lets an editor read what they wrote.

python examples/temporal/review.py "We ship on Friday"
"""

import asyncio
import os
import sys

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from turnstile.temporal import TurnstileAgents, run_agent

QUEUE = "review"
SIDES = ("a lawyer", "a poet", "a child")


@workflow.defn
class Review:
    """What an editor makes of what three critics say."""

    @workflow.run
    async def run(self, text: str) -> dict[str, str]:
        """The answers of all; `with_value` puts them into this workflow's history."""
        views = await asyncio.gather(
            *(run_agent(profile_name="critic", instruction=f"As {side}: {text}", with_value=True) for side in SIDES)
        )
        answers = "; ".join(str(view.value) for view in views)
        verdict = await run_agent(
            profile_name="editor", instruction=answers, with_value=True, budget={"max_seconds": 600}
        )
        return {
            **{side: str(view.value) for side, view in zip(SIDES, views, strict=True)},
            "editor": str(verdict.value),
        }


async def main(text: str) -> None:
    """Run a worker, and the workflow once."""
    address = os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")
    client = await Client.connect(address, namespace=os.environ.get("TEMPORAL_NAMESPACE", "default"))
    async with Worker(client, task_queue=QUEUE, workflows=[Review], plugins=[TurnstileAgents()]):
        answers = await client.execute_workflow(Review.run, text, id=f"review-{os.getpid()}", task_queue=QUEUE)
    for who, what in answers.items():
        sys.stdout.write(f"{who}: {what}\n")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "We ship on Friday"))
