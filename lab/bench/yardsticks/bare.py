"""A program that measures Temporal alone: bare workflows, started and served by one process (`python -m`).

It has the runtime, converters, pollers and slots of a Turnstile worker, and does nothing else. It reads orders as JSON
lines from standard input and answers each by a line on standard output. It ends at the end of its input.
"""

import asyncio
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle

from turnstile.embedded import Endpoints
from turnstile.schema.base import Strict
from turnstile.settings.model import TemporalSettings
from turnstile.temporal.connect import connect_engine
from turnstile.temporal.plugin import turn_workers, turnstile_plugin, turnstile_runtime
from turnstile.workflows.options import task_queue

_ASLEEP_SECONDS = 1.0
"""After the last start: by then all of them sleep."""
Kind = Literal["one", "none", "woken"]
"""A workflow with one empty activity, with none, or one that sleeps until a signal and then runs a local activity."""


class Setting(Strict):
    """The address of Temporal, and the settings of the worker."""

    temporal: TemporalSettings
    """The `[temporal]` settings, with address and namespace."""
    target: str
    max_concurrency: int
    max_cached_turns: int


class Order(Strict):
    """Workflows to run: concurrently, or one after the other."""

    kind: Kind
    count: int
    at_once: bool


class Done(Strict):
    """The time that all workflows took, and for each the ms from start to result."""

    seconds: float
    took_ms: list[float]
    """Of those that sleep: from the signal to the run of the local activity."""


@activity.defn
async def nothing() -> None:
    """An activity that does nothing."""


@workflow.defn
class BareWorkflow:
    """A workflow with one empty activity, like a turn with one step."""

    @workflow.run
    async def run(self) -> None:
        """Run the activity."""
        await workflow.execute_activity(nothing, start_to_close_timeout=timedelta(seconds=60))


@workflow.defn
class EmptyWorkflow:
    """A workflow without activities: the least that a workflow costs."""

    @workflow.run
    async def run(self) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Moments:
    """When each workflow was seen awake: a future for each, set by its local activity."""

    awake: "defaultdict[str, asyncio.Future[float]]"

    @activity.defn
    async def note(self) -> None:
        """Note the time of this run (`time.perf_counter`)."""
        self.awake[activity.info().workflow_id or ""].set_result(time.perf_counter())


@workflow.defn
class SleepingWorkflow:
    """A workflow that sleeps until its signal, with a deadline, like a turn whose calls are out."""

    def __init__(self) -> None:
        self._woken = False

    @workflow.signal
    def wake(self) -> None:
        """End the sleep."""
        self._woken = True

    @workflow.run
    async def run(self) -> None:
        """Sleep, then run the local activity."""
        await workflow.wait_condition(lambda: self._woken, timeout=timedelta(hours=1))
        await workflow.execute_local_activity("note", start_to_close_timeout=timedelta(seconds=60))


_WORKFLOWS = {"one": BareWorkflow.run, "none": EmptyWorkflow.run}


async def main(setting: Setting) -> None:
    """Execute orders until the end of the input."""
    engine = Endpoints(
        database_url="",
        nats_url="",
        temporal_address=setting.temporal.address,
        temporal_namespace=setting.temporal.namespace,
    )
    client = await connect_engine(
        setting.temporal, engine, plugins=[turnstile_plugin()], runtime=turnstile_runtime(), identity="turnstile-bench"
    )
    moments = Moments(defaultdict(asyncio.get_running_loop().create_future))
    [worker] = turn_workers(
        client,
        [setting.target],
        max_concurrency=setting.max_concurrency,
        max_cached_turns=setting.max_cached_turns,
        activities=[nothing, moments.note],
        workflows=[BareWorkflow, EmptyWorkflow, SleepingWorkflow],
    )
    async with worker:
        number = 0
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = Order.model_validate_json(line)
            if order.kind == "woken":
                finished = await _wake(client, setting.target, order.count, number, moments)
            else:
                finished = await _run(client, setting.target, order, number)
            sys.stdout.write(finished.model_dump_json() + "\n")
            sys.stdout.flush()
            number += order.count


async def _run(client: Client, target: str, order: Order, first: int) -> Done:
    run = _WORKFLOWS[order.kind]

    async def one(number: int) -> float:
        began = time.perf_counter()
        await client.execute_workflow(
            run,
            id=f"bare-{target}-{number}",
            task_queue=task_queue(target),
            request_eager_start=True,
        )
        return (time.perf_counter() - began) * 1000

    began, numbers = time.perf_counter(), range(first, first + order.count)
    took = list(await asyncio.gather(*map(one, numbers))) if order.at_once else [await one(n) for n in numbers]
    return Done(seconds=time.perf_counter() - began, took_ms=took)


async def _wake(client: Client, target: str, count: int, first: int, moments: Moments) -> Done:
    """Put workflows to sleep, and signal all of them concurrently."""
    queue = task_queue(target)
    handles = [
        await client.start_workflow(SleepingWorkflow.run, id=f"bare-{target}-{number}", task_queue=queue)
        for number in range(first, first + count)
    ]
    await asyncio.sleep(_ASLEEP_SECONDS)

    async def one(handle: WorkflowHandle[SleepingWorkflow, None]) -> float:
        began = time.perf_counter()
        await handle.signal(SleepingWorkflow.wake)
        return (await moments.awake[handle.id] - began) * 1000

    began = time.perf_counter()
    took = list(await asyncio.gather(*map(one, handles)))
    seconds = time.perf_counter() - began
    await asyncio.gather(*(handle.result() for handle in handles))
    moments.awake.clear()
    return Done(seconds=seconds, took_ms=took)


if __name__ == "__main__":
    asyncio.run(main(Setting.model_validate_json(sys.argv[1])))
