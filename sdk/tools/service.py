"""Tools in Python (docs/tools.md): functions that answer the calls of agents. They need a connection to NATS only.

    service = ToolService()

    @service.tool(target="text", suffix="count")
    async def word_count(text: str, unit: Literal["words", "lines"] = "words") -> dict[str, int]:
        '''Count the words or lines of a text.

        text: The text to count in.
        '''
        ...

    service.main()  # or, in a program of your own: await service.run()

Every call is answered: with the function's return value, or with a failed result that says why there is none. Run any
number of replicas: they share one durable consumer per tool, and one of them runs a call. If a replica dies while it
runs a call, another runs it again, with the same `ToolCall.tool_call_id`.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Literal, TypeVar, cast

import yaml
from pydantic import TypeAdapter, ValidationError

from turnstile.runtime.event_loop import fast_loop
from turnstile.runtime.program import END_SECONDS, INTERRUPTED, LATE_SECONDS, Program
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.runtime.waiting import await_server, unless_stopped
from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, ConfigError, TurnstileError
from turnstile.schema.ids import ChannelId, ProjectId, token
from turnstile.schema.profiles import Profile
from turnstile.schema.states import AfterExecution
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.validation import describe_faults
from turnstile.schema.wire.roster_requests import ProfilePutRequest, ToolPutRequest
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.tools.answer import Terminate, ToolFailed
from turnstile.sdk.tools.call import ChildTask, ToolCall, Used
from turnstile.sdk.tools.spec import OnOver, ToolFunction, ToolSpec, ToolTerms, read_spec
from turnstile.sdk.tools.worker import ToolCounts, ToolWorker
from turnstile.sdk.turn import adapter_of
from turnstile.transport.connection import NatsConnection, connect, start_connecting
from turnstile.transport.streams import declare_consumer

__all__ = ["ChildTask", "Terminate", "ToolCall", "ToolFailed", "ToolService", "Used"]

_BEATS_PER_ACK_WAIT = 3
_LEAST_ACK_WAIT = 2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_GIVEN = {"instruction", "output_schema", "result_fields"}
"""What a turn of an agent in code gives its function (protocol §21)."""

logger = logging.getLogger(__name__)
Function = TypeVar("Function", bound=ToolFunction)


class ToolService:
    """Functions as tools of one project, or of all projects if `project_id` is None.

    `concurrency` bounds the calls of each tool that run at once in this process. `ack_wait_seconds` after a replica's
    death another replica runs its calls; all replicas of a tool must have the same value. `telemetry` records every
    call (docs/observability.md).
    """

    def __init__(
        self,
        project_id: str | None = None,
        *,
        concurrency: int = 16,
        drain_seconds: float = 30.0,
        ack_wait_seconds: int = 30,
        heartbeat_seconds: float = 60.0,
        telemetry: Telemetry = SILENT,
    ) -> None:
        if ack_wait_seconds < _LEAST_ACK_WAIT:
            raise ConfigError(f"ack_wait_seconds must be at least {_LEAST_ACK_WAIT}")
        self._project = None if project_id is None else ProjectId(token(project_id, "project_id"))
        self._concurrency = concurrency
        self._drain_seconds = drain_seconds
        self._ack_wait_seconds = ack_wait_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._telemetry = telemetry
        self._specs: dict[str, ToolSpec] = {}
        self._profiles: dict[str, Profile] = {}
        self._workers: dict[str, ToolWorker] = {}

    def tool(
        self,
        *,
        target: str,
        suffix: str,
        name: str | None = None,
        after_execution: AfterExecution = AfterExecution.SUSPEND,
        timeout_seconds: float = 60.0,
        concurrency: int | None = None,
        envs: Mapping[str, str] | None = None,
        repeat: Literal["safe", "unsafe"] = "safe",
        on_over: OnOver | None = None,
    ) -> Callable[[Function], Function]:
        """Make a function the tool that answers `cmd.tool.{target}.{suffix}`; returns the function unchanged.

        `envs` maps arguments to env variables of this process, which the model neither sees nor sets. With `repeat`
        "unsafe" a call that began is not run again when its replica dies: a person is asked. If a replica died and the
        call waits no more, `on_over` is given the call in place of the function, to end what that had begun elsewhere.
        Raises `ConfigError` if the function cannot be a tool.
        """
        terms = ToolTerms(
            target=target,
            suffix=suffix,
            name=name,
            after_execution=after_execution,
            timeout_seconds=timeout_seconds,
            concurrency=self._concurrency if concurrency is None else concurrency,
            envs=dict(envs or {}),
            repeat=repeat,
            on_over=on_over,
        )

        def decorate(function: Function) -> Function:
            self.add(read_spec(function, terms))
            return function

        return decorate

    def agent(
        self,
        *,
        name: str | None = None,
        target: str | None = None,
        suffix: str = "turn",
        output_schema: JsonObject | type[Any] | TypeAdapter[Any] | None = None,
        profile: Mapping[str, Any] | None = None,
        timeout_seconds: float = 600.0,
        concurrency: int | None = None,
        repeat: Literal["safe", "unsafe"] = "safe",
        on_over: OnOver | None = None,
    ) -> Callable[[Function], Function]:
        """Make a function an agent (docs/code-agents.md): a tool, and a profile of its name whose turns it does.

        The function takes `instruction`, and may take `output_schema`, `result_fields` and a `ToolCall`. What it
        returns is the turn's answer. It must match `output_schema`: a JSON schema, or a type that pydantic knows.
        `profile` has more fields of the profile; `target` is the name, unless it is given. Raises as `tool` does.
        """

        def decorate(function: Function) -> Function:
            named = name or getattr(function, "__name__", "")
            terms = ToolTerms(
                target=target or named,
                suffix=suffix,
                name=named,
                timeout_seconds=timeout_seconds,
                concurrency=self._concurrency if concurrency is None else concurrency,
                repeat=repeat,
                on_over=on_over,
            )
            spec = read_spec(function, terms)
            made = _profile(spec, output_schema, profile or {})
            self.add(spec)
            self._profiles[spec.name] = made
            return function

        return decorate

    def add(self, spec: ToolSpec) -> None:
        """Serve a tool that is described already; raises `ConfigError` for a second one of its name or address."""
        for other in self._specs.values():
            if other.name == spec.name:
                raise ConfigError(f"tool {spec.name} is there twice: give one another name")
            if other.consumer(None) == spec.consumer(None):
                raise ConfigError(f"tools {other.name} and {spec.name} have one address: change target or suffix")
        self._specs[spec.name] = spec

    def definitions(self) -> list[ToolDefinition]:
        """The definitions of the tools, as `turnstile tool put` registers them."""
        return [spec.definition for spec in self._specs.values()]

    def profiles(self) -> list[Profile]:
        """The profiles of the agents, as `turnstile profile put` stores them."""
        return list(self._profiles.values())

    def yaml(self, tool_name: str | None = None) -> str:
        """The file of one tool for `turnstile tool put`; raises `ConfigError` if several match, or none."""
        chosen = [spec for name, spec in self._specs.items() if tool_name in (None, name)]
        if len(chosen) != 1:
            raise ConfigError(f"name one of the tools: {', '.join(self._specs) or 'there are none'}")
        document = chosen[0].definition.model_dump(mode="json", exclude_defaults=True)
        return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)

    def counts(self) -> dict[str, ToolCounts]:
        """Counts of each tool's commands since `run` began."""
        return {name: worker.counts for name, worker in self._workers.items()}

    async def run(
        self,
        nats_url: str | None = None,
        *,
        stop: asyncio.Event | None = None,
        ready: Callable[[], None] | None = None,
        inbox_prefix: str | None = None,
    ) -> None:
        """Answer calls until `stop` is set, or until SIGTERM or SIGINT if no `stop` is given; then drain.

        Without `nats_url` it uses the NATS of a `turnstile up` in this directory or above, and follows its address.

        Running calls have `drain_seconds` to end; then other replicas run them. Raises `ConfigError` if this user lacks
        a permission on NATS, `ServerUnavailable` once the connection is closed for good. End it by setting `stop`, not
        by cancelling it.
        """
        if not self._specs:
            raise ConfigError("the service has no tools: decorate a function with @service.tool(…)")
        instance = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        async with AsyncExitStack() as stack:
            if stop is None:
                stop = asyncio.Event()
                stack.callback(_on_signals(stop))
            conn = start_connecting(nats_url, name=f"turnstile-tools@{instance}", inbox_prefix=inbox_prefix)
            stack.push_async_callback(conn.drain)
            await unless_stopped(stop, conn.opened())
            self._workers = {
                name: ToolWorker(
                    conn,
                    spec,
                    self._project,
                    instance=instance,
                    ack_wait_seconds=self._ack_wait_seconds,
                    telemetry=self._telemetry,
                )
                for name, spec in self._specs.items()
            }
            for worker in self._workers.values():
                await unless_stopped(stop, await_server(f"NATS at {conn.shown}", worker.check))
            if stop.is_set():
                return
            logger.info("serving %s as %s", ", ".join(self._specs), instance)
            if ready is not None:
                ready()
            await self._serve(conn, list(self._workers.values()), stop)

    async def declare(self, nats_url: str | None = None) -> None:
        """Create the tools' consumers, for a service whose own NATS user may not create them."""
        conn = await connect(nats_url, name="turnstile-tools-declare")
        try:
            for spec in self._specs.values():
                consumer = spec.consumer(self._project), spec.filter(self._project)
                await declare_consumer(conn, *consumer, ack_wait_seconds=self._ack_wait_seconds)
        finally:
            await conn.drain()

    async def put(self, nats_url: str | None = None) -> None:
        """Store the tools, and the profiles of the agents, in the service's project; those of their names are replaced.

        Raises `ConfigError` without a project, `Refused` if this user may not, `ServerUnavailable` without a bridge.
        """
        if self._project is None:
            raise ConfigError("which project gets the tools? name it: --project ID")
        conn = await connect(nats_url, name="turnstile-tools-put")
        try:
            bridge = BridgeClient(conn, self._project, ChannelId("public"), "tools")
            for definition in self.definitions():
                await bridge.call(verbs.TOOL_PUT, ToolPutRequest(tool=definition))
                logger.info("tool %s is stored in %s", definition.tool_name, self._project)
            for profile in self.profiles():
                reply = await bridge.call(verbs.PROFILE_PUT, ProfilePutRequest(profile=profile))
                logger.info("profile %s is stored in %s", profile.name, self._project)
                for warning in reply.warnings:
                    logger.warning("profile %s: %s", profile.name, warning)
        finally:
            await conn.drain()

    def main(self, argv: Sequence[str] | None = None) -> None:
        """Run the service as a program until a signal ends it; with `--yaml` or `--put`, say what it serves instead."""
        parser = argparse.ArgumentParser(description=f"Answers calls of {', '.join(self._specs)}.")
        about = "nats://… of the kernel (default: $NATS_URL, else that of a `turnstile up` in this directory or above)"
        parser.add_argument("--nats", metavar="URL", default=os.environ.get("NATS_URL") or None, help=about)
        about = "write the file for `turnstile tool put` of this tool (or of the only one) and end"
        parser.add_argument("--yaml", metavar="TOOL", nargs="?", const="", help=about)
        about = "serve this project only, by a consumer of its own (permissions: `turnstile docs tools`)"
        parser.add_argument("--project", metavar="ID", default=self._project, help=about)
        parser.add_argument("--declare", action="store_true", help="make the tools' consumers and end")
        about = "store the tools and the profiles of agents in the project, which --project names, and end"
        parser.add_argument("--put", action="store_true", help=about)
        options = parser.parse_args(argv)
        stop, code = asyncio.Event(), 0
        program = Program(
            end_seconds=self._drain_seconds + END_SECONDS,
            late_seconds=self._drain_seconds + LATE_SECONDS,
            new_loop=fast_loop,
        )
        try:
            if options.yaml is not None:
                sys.stdout.write(self.yaml(options.yaml or None))
                return
            if options.project is not None:
                self._project = ProjectId(token(options.project, "--project"))
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
            once = self.put if options.put else self.declare if options.declare else None
            work = self.run(options.nats, stop=stop) if once is None else once(options.nats)
            program.run(work, lambda task: stop.set() if once is None else task.cancel())
        except asyncio.CancelledError:
            code = 0 if program.was_late else INTERRUPTED
        except TurnstileError as error:
            sys.stderr.write(f"{error}\n")
            code = 1
        program.leave(code)

    async def _serve(self, conn: NatsConnection, workers: list[ToolWorker], stop: asyncio.Event) -> None:
        ending = asyncio.Event()  # not the caller's `stop`: a tool that fails sets this to end the other tools
        watch = asyncio.create_task(_pass_on(stop, ending))
        pulls = [asyncio.create_task(worker.run(ending)) for worker in workers]
        beats = [asyncio.create_task(self._keep(workers)), asyncio.create_task(self._announce_workers(conn, workers))]
        try:
            await asyncio.wait(pulls, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            ending.set()
            await asyncio.wait(pulls)
            await asyncio.gather(*(worker.drain(self._drain_seconds) for worker in workers))
            for task in (watch, *beats):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(watch, *beats)
            self._log_counts(conn, workers)
        for pull in pulls:
            pull.result()

    async def _keep(self, workers: list[ToolWorker]) -> None:
        while True:
            await asyncio.sleep(self._ack_wait_seconds / _BEATS_PER_ACK_WAIT)
            for worker in workers:
                await worker.keep()

    async def _announce_workers(self, conn: NatsConnection, workers: list[ToolWorker]) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            self._log_counts(conn, workers)

    def _log_counts(self, conn: NatsConnection, workers: list[ToolWorker]) -> None:
        state = "connected" if conn.connected.is_set() else "not connected"
        for worker in workers:
            counts = worker.counts
            logger.info(
                "tool %s (%s): %d running, %d succeeded, %d failed, %d duplicates, %d refused, %d deferred",
                worker.spec.name,
                state,
                worker.running,
                counts.succeeded,
                counts.failed,
                counts.duplicates,
                counts.refused,
                counts.deferred,
            )


def _profile(
    spec: ToolSpec, output: JsonObject | type[Any] | TypeAdapter[Any] | None, more: Mapping[str, Any]
) -> Profile:
    """The profile of an agent; raises `ConfigError` if no turn could call its function, or for a field of `more`."""
    properties, required = (spec.definition.parameters.get(name) or () for name in ("properties", "required"))
    if "instruction" not in cast("JsonObject", properties):
        raise ConfigError(f"agent {spec.name}: the function needs a parameter `instruction: str`")
    if unknown := sorted(set(cast("list[str]", required)) - _GIVEN):
        raise ConfigError(f"agent {spec.name}: a turn gives no {', '.join(unknown)}: give it a default")
    try:
        schema = output if output is None or isinstance(output, dict) else adapter_of(output).json_schema()
        typed = {} if schema is None else {"output_schema": schema}
        return Profile.model_validate({"name": spec.name, "run_by": spec.name, **typed, **more})
    except ValidationError as error:
        raise ConfigError(f"agent {spec.name}: {describe_faults(error, Profile)}") from None
    except BadRequest as error:
        raise ConfigError(f"agent {spec.name}: {error}") from None


async def _pass_on(stop: asyncio.Event, ending: asyncio.Event) -> None:
    await stop.wait()
    ending.set()


def _on_signals(stop: asyncio.Event) -> Callable[[], None]:
    """Set `stop` at the first signal; a second one ends the process as by default. Returns a function to undo this."""
    loop = asyncio.get_running_loop()

    def undo() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def on_signal() -> None:
        undo()
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    return undo
