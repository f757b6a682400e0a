"""Turnstile beside workflows of one's own (docs/temporal.md); `codec` and others here are for our own processes.

A name is imported when it is first used: a workflow that imports `run_agent` loads temporalio and nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnstile.temporal.agent_calls import AgentCanceled, AgentResult, run_agent
    from turnstile.temporal.agents_plugin import TurnstileAgents, activity_correlation_id
    from turnstile.temporal.workflow_tool import WorkflowTool

__all__ = [
    "AgentCanceled",
    "AgentResult",
    "TurnstileAgents",
    "WorkflowTool",
    "activity_correlation_id",
    "run_agent",
]

_MODULES = {
    "turnstile.temporal.agent_calls": ("AgentCanceled", "AgentResult", "run_agent"),
    "turnstile.temporal.agents_plugin": ("TurnstileAgents", "activity_correlation_id"),
    "turnstile.temporal.workflow_tool": ("WorkflowTool",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'turnstile.temporal' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
