"""`WorkflowTool`: a workflow of one's own as a tool of agents (docs/temporal.md, protocol §17.5).

A call starts the workflow under the id `tool-{tool_call_id}`, once: a command that comes again, here or at another
replica, finds that execution, running or closed. Its result or failure is the call's. When the call waits no more (its
turn was stopped, its time is over), the workflow is cancelled; at its deadline Temporal ends it without any of us.
The call's arguments are the workflow's input, so they enter its history. A waiting call costs a long poll of Temporal
and a look at the ledger every 1 to 15 s.
"""

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_type_hints

from temporalio import exceptions
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from turnstile.schema.errors import ConfigError
from turnstile.sdk.tools.answer import ToolFailed
from turnstile.sdk.tools.call import ToolCall
from turnstile.sdk.tools.service import ToolService
from turnstile.transport.limited_log import LimitedLog

_CALL = "turnstile_call"
_LOOK_SECONDS = 1.0, 15.0
_AGAIN_SECONDS = 2.0
_MARGIN = timedelta(seconds=60)
"""How long after the call's deadline Temporal ends the workflow, if no replica has cancelled it."""
_FINAL = (
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
)
"""What Temporal answers a start that it will never accept."""
_CODE = re.compile(r"[a-z][a-z0-9_]*\Z")

Connect = Callable[[], Awaitable[Client]]
logger: Final = logging.getLogger(__name__)


class WorkflowTool:
    """`WorkflowTool(Order.run, client=…, task_queue=…, target=…, suffix=…).add_to(service)`.

    `workflow` is the run method; its parameters are the tool's arguments, its docstring the description, as
    `ToolService.tool` reads them. `client` is a connected client, or an async function that connects one at the first
    call. A turn waits `timeout` for the workflow, at most 30 days.
    """

    def __init__(
        self,
        workflow: Callable[..., Awaitable[Any]],
        *,
        client: Client | Connect,
        task_queue: str,
        target: str,
        suffix: str,
        name: str | None = None,
        description: str | None = None,
        timeout: timedelta = timedelta(days=1),
        concurrency: int = 500,
    ) -> None:
        self._workflow = workflow
        self._client = client
        self._connecting = asyncio.Lock()
        self._task_queue = task_queue
        self._timeout = timeout
        self._address = target, suffix, concurrency
        self._name = name or _snake(workflow.__qualname__.rpartition(".")[0].rpartition(".")[2])
        self._description = description
        self._log = LimitedLog(logger)

    def add_to(self, service: ToolService) -> None:
        """Have the service answer its calls; raises `ConfigError` if the workflow cannot be a tool."""
        target, suffix, concurrency = self._address
        service.tool(
            target=target,
            suffix=suffix,
            name=self._name,
            timeout_seconds=self._timeout.total_seconds(),
            concurrency=concurrency,
            on_over=self._cancel,
        )(self._function())

    def _function(self) -> Callable[..., Awaitable[object]]:
        """The function of the tool, with the parameters of the workflow."""
        try:
            hints = get_type_hints(self._workflow, include_extras=True)
            _, *parameters = inspect.signature(self._workflow).parameters.values()
        except (NameError, TypeError, ValueError) as error:
            raise ConfigError(f"tool {self._name}: give it the run method of a workflow, {error}") from None
        names = [parameter.name for parameter in parameters]

        async def run(**arguments: Any) -> object:  # what the workflow takes
            call: ToolCall = arguments.pop(_CALL)
            return await self._run(call, [arguments[name] for name in names])

        call = inspect.Parameter(_CALL, inspect.Parameter.KEYWORD_ONLY, annotation=ToolCall)
        keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        run.__name__ = self._name
        run.__doc__ = self._description or self._workflow.__doc__
        run.__annotations__ = {**{name: hints[name] for name in names if name in hints}, _CALL: ToolCall}
        setattr(run, "__signature__", inspect.Signature([*keyword, call]))  # noqa: B010 -- functions do not declare it
        return run

    async def _run(self, call: ToolCall, arguments: list[Any]) -> object:
        """The workflow's result. Cancelled when this replica ends: then another one goes on, and the workflow too."""
        pause, longest = _LOOK_SECONDS
        result = asyncio.create_task(self._result(call, arguments))
        try:
            while not (await asyncio.wait({result}, timeout=pause))[0]:
                if not await call.waits():
                    result.cancel()  # or it might start what is cancelled here
                    await asyncio.wait({result})
                    await self._cancel_until_done(call)
                    raise ToolFailed("parent_over", "the turn waits no more for this call; its workflow was cancelled")
                pause = min(pause * 1.5, longest)
            return result.result()
        finally:
            result.cancel()
            await asyncio.wait({result})

    async def _result(self, call: ToolCall, arguments: list[Any]) -> object:
        while True:
            try:
                handle = await self._started(call, arguments)
                return await handle.result()
            except WorkflowFailureError as error:
                raise _failed(error) from None
            except RPCError as error:
                if error.status in _FINAL:
                    raise ToolFailed(
                        "workflow_not_started", f"Temporal refused the workflow: {error.message}"
                    ) from None
                self._log.warning("temporal", "tool %s waits for Temporal: %s", self._name, error.message)
            except RuntimeError as error:  # of the connection
                self._log.warning("temporal", "tool %s waits for Temporal: %s", self._name, error)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _started(self, call: ToolCall, arguments: list[Any]) -> WorkflowHandle[Any, Any]:
        """The call's only execution, started unless it was."""
        client, left = await self._connected(), self._timeout
        if call.resume_deadline is not None:
            left = max(call.resume_deadline - datetime.now(UTC), timedelta(seconds=1))
        try:
            return await client.start_workflow(
                self._workflow,
                args=arguments,
                id=tool_workflow_id(call),
                task_queue=self._task_queue,
                execution_timeout=left + _MARGIN,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=f"{self._name}, a tool call of agent {call.agent_id}",
            )
        except exceptions.WorkflowAlreadyStartedError:  # and closed
            return client.get_workflow_handle_for(self._workflow, tool_workflow_id(call))

    async def _cancel_until_done(self, call: ToolCall) -> None:
        while True:
            try:
                return await self._cancel(call)
            except (RPCError, RuntimeError) as error:
                self._log.warning("temporal", "tool %s cannot cancel a workflow yet: %s", self._name, error)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _cancel(self, call: ToolCall) -> None:
        """Cancel the call's workflow, unless it is closed or never began."""
        try:
            await (await self._connected()).get_workflow_handle(tool_workflow_id(call)).cancel()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    async def _connected(self) -> Client:
        async with self._connecting:
            if not isinstance(self._client, Client):
                self._client = await self._client()
            return self._client


def tool_workflow_id(call: ToolCall) -> str:
    """The id of the workflow of a call."""
    return f"tool-{call.tool_call_id}"


def _failed(error: WorkflowFailureError) -> ToolFailed:
    """The failed result: with the type of the workflow's `ApplicationError` as code, if that looks like one."""
    cause: BaseException = error.cause
    while isinstance(cause, exceptions.ActivityError | exceptions.ChildWorkflowError) and cause.cause is not None:
        cause = cause.cause
    match cause:
        case exceptions.ApplicationError(type=str() as kind) if _CODE.match(kind):
            return ToolFailed(kind, cause.message)
        case exceptions.ApplicationError():
            return ToolFailed("workflow_failed", f"{cause.type or 'error'}: {cause.message}")
        case exceptions.CancelledError():
            return ToolFailed("workflow_canceled", "the workflow was cancelled")
        case exceptions.TerminatedError():
            return ToolFailed("workflow_terminated", "the workflow was terminated")
        case exceptions.TimeoutError():
            return ToolFailed("workflow_timeout", "the workflow did not end in its time")
        case _:
            return ToolFailed("workflow_failed", type(cause).__name__)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
