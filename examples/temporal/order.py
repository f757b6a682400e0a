"""A workflow of yours as a tool of agents: each call of `place_order` is one execution.

python examples/temporal/order.py --yaml > order.yaml     # the tool, for `turnstile tool put`
python examples/temporal/order.py                         # serves it, and runs the workflow
"""

import asyncio
import logging
import os
import sys
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from turnstile import ToolService
    from turnstile.temporal import WorkflowTool

QUEUE = "orders"
STOCK = {"tea": 40, "bread": 3}


@activity.defn
async def take_from_stock(item: str, count: int) -> int:
    """Take so many; how many are left."""
    if STOCK.get(item, 0) < count:
        raise ApplicationError(f"there is not so much {item}", type="sold_out", non_retryable=True)
    STOCK[item] -= count
    return STOCK[item]


@workflow.defn
class PlaceOrder:
    """An order, from the stock to the post."""

    @workflow.run
    async def run(self, item: str, count: int = 1) -> dict[str, str | int]:
        """Order something, and have it sent.

        item: What is ordered.
        count: How many.
        """
        soon = timedelta(seconds=10)
        left = await workflow.execute_activity(take_from_stock, args=[item, count], start_to_close_timeout=soon)
        await workflow.sleep(timedelta(seconds=1), summary="the post")
        return {"sent": f"{count} × {item}", "left": left}


async def connect() -> Client:
    """A client of your Temporal."""
    address = os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")
    return await Client.connect(address, namespace=os.environ.get("TEMPORAL_NAMESPACE", "default"))


service = ToolService()
WorkflowTool(PlaceOrder.run, client=connect, task_queue=QUEUE, target="shop", suffix="order").add_to(service)


async def main() -> None:
    """Serve the tool and run its workflow; in production these may be processes of their own."""
    logging.basicConfig(level=logging.INFO)
    async with Worker(await connect(), task_queue=QUEUE, workflows=[PlaceOrder], activities=[take_from_stock]):
        await service.run(os.environ.get("NATS_URL"))


if __name__ == "__main__":
    if "--yaml" in sys.argv:
        service.main()
    else:
        asyncio.run(main())
