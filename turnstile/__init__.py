"""Turnstile: a durable kernel for LLM agent turns. These names are the public API; docs/python.md shows each.

A name is imported when it is first used, so that neither a workflow nor `turnstile --help` loads what it does not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnstile.processes.services import ServiceTurn, run_service
    from turnstile.schema.errors import (
        BadRequest,
        ConfigError,
        Limited,
        Refused,
        ServerUnavailable,
        StaleTurn,
        TurnstileError,
    )
    from turnstile.schema.pump.listeners import listener
    from turnstile.schema.pump.payloads import Payload
    from turnstile.schema.pump.primitives import HandlerMetadata, HandlerResponse, Huh, SystemErrorMessage
    from turnstile.sdk.blocking import SyncClient, SyncConversation, SyncInterrupt, SyncTurn
    from turnstile.sdk.interrupts import Interrupt
    from turnstile.sdk.tools.service import ChildTask, Terminate, ToolCall, ToolFailed, ToolService, Used
    from turnstile.sdk.turn import Turn, TurnFailed, TurnResult
    from turnstile.sdk.turns import Client, Conversation, connect

__all__ = [
    "BadRequest",
    "ChildTask",
    "Client",
    "ConfigError",
    "Conversation",
    "HandlerMetadata",
    "HandlerResponse",
    "Huh",
    "Interrupt",
    "Limited",
    "Payload",
    "Refused",
    "ServerUnavailable",
    "ServiceTurn",
    "StaleTurn",
    "SyncClient",
    "SyncConversation",
    "SyncInterrupt",
    "SyncTurn",
    "SystemErrorMessage",
    "Terminate",
    "ToolCall",
    "ToolFailed",
    "ToolService",
    "Turn",
    "TurnFailed",
    "TurnResult",
    "TurnstileError",
    "Used",
    "connect",
    "listener",
    "run_service",
]

_MODULES = {
    "turnstile.processes.services": ("ServiceTurn", "run_service"),
    "turnstile.schema.errors": (
        *("BadRequest", "ConfigError", "Limited", "Refused", "ServerUnavailable"),
        *("StaleTurn", "TurnstileError"),
    ),
    "turnstile.schema.pump.listeners": ("listener",),
    "turnstile.schema.pump.payloads": ("Payload",),
    "turnstile.schema.pump.primitives": ("HandlerMetadata", "HandlerResponse", "Huh", "SystemErrorMessage"),
    "turnstile.sdk.tools.service": ("ChildTask", "Terminate", "ToolCall", "ToolFailed", "ToolService", "Used"),
    "turnstile.sdk.interrupts": ("Interrupt",),
    "turnstile.sdk.blocking": ("SyncClient", "SyncConversation", "SyncInterrupt", "SyncTurn"),
    "turnstile.sdk.turn": ("Turn", "TurnFailed", "TurnResult"),
    "turnstile.sdk.turns": ("Client", "Conversation", "connect"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'turnstile' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
