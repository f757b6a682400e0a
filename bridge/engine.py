"""The bridge's connection to Temporal: waits for the server, checks it, and declares the search attributes once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeIndexedValueType
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from turnstile.runtime.waiting import await_server
from turnstile.schema.errors import ConfigError, ServerUnavailable
from turnstile.workflows import options

_HEALTH_TIMEOUT = timedelta(seconds=3)
_CHECKED_WORKFLOWS = 5
_LOOKS, _LOOK_SECONDS = 50, 0.2
"""How often, and how far apart, a client looks whether attributes that it declared are known."""

_FATAL = {RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED}
_DENIED = {RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED}
_INDEXED_TYPES = {
    SearchAttributeIndexedValueType.KEYWORD: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    SearchAttributeIndexedValueType.INT: IndexedValueType.INDEXED_VALUE_TYPE_INT,
}


async def await_client(
    address: str, connect: Callable[[], Awaitable[Client]], check: Callable[[Client], Awaitable[object]] | None = None
) -> Client:
    """Connect, run `check`, and return the client; while the server is away, try again.

    Raises `ConfigError` where waiting cannot help (no such namespace, no permission), and what `check` raises.
    """

    async def attempt() -> Client:
        try:
            client = await connect()
            await client.count_workflows("WorkflowId = 'none'")
            if check is not None:
                await check(client)
        except RPCError as error:
            if error.status in _FATAL:
                raise ConfigError(f"Temporal at {address}: {error.message}") from None
            raise ServerUnavailable(error.message) from error
        except (RuntimeError, OSError) as error:  # the SDK raises RuntimeError when it cannot connect
            raise ServerUnavailable(str(error)) from error
        return client

    return await await_server(f"Temporal at {address}", attempt)


async def ensure_engine(client: Client) -> None:
    """Raise `ServerUnavailable` at once if the server is away; a call with retries would fail much later."""
    try:
        answers = await client.service_client.check_health(retry=False, timeout=_HEALTH_TIMEOUT)
    except (RPCError, OSError) as error:
        raise ServerUnavailable(f"Temporal: {error}") from error
    if not answers:
        raise ServerUnavailable("Temporal: its health check says that it does not serve")


async def declare_search_attributes(client: Client) -> list[str]:
    """Declare Turnstile's search attributes in the client's namespace if they are missing; returns their names.

    Takes some milliseconds; if some were missing, some seconds, since servers keep what they know of a namespace for so
    long. Raises `ConfigError` if they are missing and this client may not declare them, as in Temporal Cloud.
    """
    kinds = {key.name: _INDEXED_TYPES[key.indexed_value_type] for key in options.SEARCH_ATTRIBUTES}
    if await are_known(client):
        return list(kinds)
    try:
        for name, kind in kinds.items():  # each alone: one that is there would refuse the others with it
            await _declare(client, name, kind)
    except RPCError as error:
        if error.status in _DENIED:
            missing = ", ".join(f"{key.name} ({key.indexed_value_type.name})" for key in options.SEARCH_ATTRIBUTES)
            raise ConfigError(
                f"this client may not create search attributes; create these in namespace {client.namespace}: {missing}"
            ) from None
        raise
    for _ in range(_LOOKS):
        if await are_known(client):
            break
        await asyncio.sleep(_LOOK_SECONDS)
    return list(kinds)


async def _declare(client: Client, name: str, kind: IndexedValueType.ValueType) -> None:
    """Declare one search attribute, unless it is there."""
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes={name: kind})
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status != RPCStatusCode.ALREADY_EXISTS:
            raise


async def ensure_readable(client: Client, worker_targets: Sequence[str]) -> None:
    """Raise `ConfigError` if open workflows of these targets hold payloads that this process cannot decrypt.

    Checks the five newest workflows. If only an older one needs a missing key, that workflow fails when it wakes.
    """
    targets = ", ".join(f"'{target}'" for target in worker_targets)
    query = f"{options.WORKER_TARGET.name} IN ({targets}) AND ExecutionStatus = 'Running'"
    async for flow in client.list_workflows(query, limit=_CHECKED_WORKFLOWS):
        handle = client.get_workflow_handle(flow.id, run_id=flow.run_id)
        try:
            first = await anext(handle.fetch_history_events(page_size=1))
        except (RPCError, StopAsyncIteration):  # the workflow was deleted meanwhile
            continue
        try:
            await client.data_converter.decode(first.workflow_execution_started_event_attributes.input.payloads)
        except Exception as error:  # a user's codec may raise anything
            reason = error.message if isinstance(error, ApplicationError) else type(error).__name__
            raise ConfigError(f"Temporal holds turns that this process cannot read ({flow.id}): {reason}") from error


async def are_known(client: Client) -> bool:
    """Whether Turnstile's search attributes are declared: queries by them, which every client may do."""
    try:
        await client.count_workflows(" AND ".join(f"{key.name} IS NULL" for key in options.SEARCH_ATTRIBUTES))
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:
            raise
        return False
    return True
