"""A worker of somebody else as a process, to be killed: `their_worker.py NATS PROJECT TEMPORAL NAMESPACE QUEUE [FILE]`.

With FILE it kills itself once (until FILE is there) when it has enqueued a turn and Temporal does not know yet.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from tests.e2e.temporal.agent_workflows import WORKFLOWS
from turnstile.temporal import TurnstileAgents
from turnstile.temporal.agent_calls import ENQUEUE, AgentCall, EnqueuedTurn

nats_url, project, address, namespace, queue, *files = sys.argv[1:]


class Dying(TurnstileAgents):
    """Dies once between the request's answer and the activity's."""

    def __init__(self, file: Path) -> None:
        super().__init__(nats_url, project=project)
        enqueue = self._agents.enqueue

        @activity.defn(name=ENQUEUE)
        async def dying(call: AgentCall) -> EnqueuedTurn:
            made = await enqueue(call)
            if not file.exists():  # noqa: ASYNC240 -- a line
                file.write_text(made.agent_turn_id)  # noqa: ASYNC240 -- likewise
                os.kill(os.getpid(), signal.SIGKILL)
            return made

        self.activities = [dying, self._agents.stop]


async def main() -> None:
    """Work until killed."""
    client = await Client.connect(address, namespace=namespace)
    plugin = Dying(Path(files[0])) if files else TurnstileAgents(nats_url, project=project)
    soon = timedelta(seconds=1)  # and no ten, which the next worker would wait for a dead one's tasks
    async with Worker(
        client,
        task_queue=queue,
        workflows=WORKFLOWS,
        plugins=[plugin],
        sticky_queue_schedule_to_start_timeout=soon,
    ):
        sys.stdout.write("works\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
