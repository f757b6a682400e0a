"""A tool process of somebody else, to be killed: `their_tool.py NATS TEMPORAL NAMESPACE QUEUE TARGET`."""

import asyncio
import sys

from temporalio.client import Client

from tests.e2e.temporal.order_workflow import PlaceOrder
from turnstile import ToolService
from turnstile.temporal import WorkflowTool


def order_service(address: str, namespace: str, queue: str, target: str) -> ToolService:
    """A service whose only tool is the workflow; another replica takes over soon."""
    service = ToolService(ack_wait_seconds=2, drain_seconds=1)

    async def connect() -> Client:
        return await Client.connect(address, namespace=namespace)

    tool = WorkflowTool(PlaceOrder.run, client=connect, task_queue=queue, target=target, suffix="order")
    tool.add_to(service)
    return service


def say_that_it_works() -> None:
    """To the test."""
    sys.stdout.write("works\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(order_service(*sys.argv[2:]).run(sys.argv[1], ready=say_that_it_works))
