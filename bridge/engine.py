"""Temporal as the bridge needs it: waiting for the server, and the search attributes that must be declared once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeIndexedValueType
from temporalio.service import RPCError, RPCStatusCode

from schema.errors import ConfigError, ServerUnavailable
from workflows import options

log = logging.getLogger(__name__)
_HEALTH_TIMEOUT = timedelta(seconds=3)

_DENIED = {RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED}
_KINDS = {
    SearchAttributeIndexedValueType.KEYWORD: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    SearchAttributeIndexedValueType.INT: IndexedValueType.INDEXED_VALUE_TYPE_INT,
}


async def await_client(address: str, connect: Callable[[], Awaitable[Client]]) -> Client:
    """The client, once the server answers; logs now and then which server is waited for.

    Raises `ConfigError` where waiting cannot help (no such namespace, no permission).
    """
    waits = 0
    while True:
        try:
            client = await connect()
            await client.count_workflows("WorkflowId = 'none'")
        except RPCError as error:
            if error.status in {
                RPCStatusCode.NOT_FOUND,
                RPCStatusCode.PERMISSION_DENIED,
                RPCStatusCode.UNAUTHENTICATED,
            }:
                raise ConfigError(f"Temporal at {address}: {error.message}") from None
            trouble = error.message
        except (RuntimeError, OSError) as error:  # the SDK's word for "cannot connect"
            trouble = str(error)
        else:
            return client
        if waits % 10 == 0:
            log.warning("waiting for Temporal at %s: %.300s", address, trouble)
        waits += 1
        await asyncio.sleep(0.5)


async def ensure_engine(client: Client) -> None:
    """Raises `ServerUnavailable` at once where the server is away; a call that is tried again says so much later."""
    try:
        answers = await client.service_client.check_health(retry=False, timeout=_HEALTH_TIMEOUT)
    except (RPCError, OSError) as error:
        raise ServerUnavailable(f"Temporal: {error}") from error
    if not answers:
        raise ServerUnavailable("Temporal: its service is not up")


async def declare_search_attributes(client: Client) -> list[str]:
    """Declare ours in the client's namespace, unless they are there; returns their names. Some milliseconds.

    Raises `ConfigError` where they are missing and only an operator may declare them, as in Temporal Cloud.
    """
    kinds = {key.name: _KINDS[key.indexed_value_type] for key in options.SEARCH_ATTRIBUTES}
    if await _are_known(client, kinds):
        return list(kinds)
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=kinds)
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status in _DENIED:
            told = ", ".join(f"{key.name} ({key.indexed_value_type.name})" for key in options.SEARCH_ATTRIBUTES)
            raise ConfigError(f"make these search attributes in {client.namespace}, as we may not: {told}") from None
        if error.status != RPCStatusCode.ALREADY_EXISTS:
            raise
    return list(kinds)


async def _are_known(client: Client, names: Iterable[str]) -> bool:
    """Whether one may ask for workflows by them, which every client may try."""
    try:
        await client.count_workflows(" AND ".join(f"{name} IS NULL" for name in names))
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:
            raise
        return False
    return True
