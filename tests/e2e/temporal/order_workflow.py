"""A workflow of somebody else that agents call as a tool."""

from dataclasses import dataclass
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError


@dataclass
class Order:
    """What is ordered."""

    item: str
    count: int = 1


@workflow.defn
class PlaceOrder:
    """Takes orders; of `slow` items once it is told that they are there."""

    def __init__(self) -> None:
        self._there = False

    @workflow.run
    async def run(self, order: Order, gift: bool = False) -> dict[str, Any]:
        """Place an order.

        order: What is ordered.
        gift: Whether it is wrapped.
        """
        if order.item == "gone":
            raise ApplicationError("there is none left", type="sold_out", non_retryable=True)
        if order.item == "slow":
            await workflow.wait_condition(lambda: self._there)
        return {"ordered": order.count, "item": order.item, "gift": gift}

    @workflow.signal
    def arrive(self) -> None:
        """It is there."""
        self._there = True


@workflow.defn
class RunErrand:
    """Does what a whole turn asks for (protocol §21)."""

    @workflow.run
    async def run(self, instruction: str) -> str:
        """Run an errand."""
        if instruction == "slow":
            await workflow.wait_condition(lambda: False)
        return f"ran for {instruction}"
