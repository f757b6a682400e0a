"""A client of Temporal that is not ours, and workers of somebody else, on task queues of their own."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from tests.e2e.temporal.agent_workflows import WORKFLOWS, Asked
from tests.support.paths import ROOT
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from turnstile.schema.ids import uuid7
from turnstile.temporal import TurnstileAgents


@dataclass(frozen=True)
class Theirs:
    """Somebody else's part: a client with the SDK's own converter, and a task queue."""

    tenant: Tenant
    client: Client
    queue: str

    @property
    def worker_words(self) -> tuple[str, ...]:
        """The module and arguments of a worker of theirs."""
        at = self.tenant.stack.endpoints
        words = (at.nats_url, self.tenant.project, at.temporal_address, at.temporal_namespace, self.queue)
        return "tests.e2e.temporal.their_worker", *words

    async def start(self, workflow: Any, *args: object) -> WorkflowHandle[Any, Any]:
        """Start a workflow of theirs."""
        return await self.client.start_workflow(workflow, args=args, id=f"theirs-{uuid7()}", task_queue=self.queue)

    async def run(self, workflow: Any, **given: Any) -> Any:
        """The result of a workflow that makes one call."""
        return await (await self.start(workflow, Asked(given))).result()

    @asynccontextmanager
    async def working(self, plugin: TurnstileAgents | None = None) -> AsyncGenerator[None]:
        """A worker of theirs in this process, by default over NATS."""
        over_nats = TurnstileAgents(self.tenant.stack.endpoints.nats_url, project=self.tenant.project)
        async with Worker(self.client, task_queue=self.queue, workflows=WORKFLOWS, plugins=[plugin or over_nats]):
            yield

    @asynccontextmanager
    async def process(self, *files: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
        """A worker of theirs as a process, which may be killed."""
        started = await hatched(*self.worker_words, *map(str, files))
        try:
            assert started.stdout is not None
            assert await started.stdout.readline() == b"works\n"
            yield started
        finally:
            if started.returncode is None:
                started.kill()
            await started.wait()


async def hatched(*words: str) -> asyncio.subprocess.Process:
    """A process of theirs: a module of this folder, with arguments."""
    piped = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-m", *words, cwd=ROOT, stdout=piped)


@pytest.fixture(scope="module")
async def their_client(stack: Stack) -> Client:
    """Connected to the session's Temporal."""
    return await Client.connect(stack.endpoints.temporal_address, namespace=stack.endpoints.temporal_namespace)


@pytest.fixture
async def theirs(tenant: Tenant, their_client: Client) -> Theirs:
    """A task queue of this test alone; no worker is there yet."""
    return Theirs(tenant, their_client, f"theirs-{uuid7()}")
