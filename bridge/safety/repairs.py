"""Log lines for the safety net's repairs: which turn, agent, call or thread was mended, and how.

One line for each repair, at most `LINES` per rule and tick, then one line with the number of the others. The lines hold
ids and tool names, never content.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from turnstile.bridge.safety.rules import WatchdogTimes
from turnstile.ledger.operations.sweep import DueAgent
from turnstile.ledger.turns.lease import AgentKey

LINES = 5

SENTENCES: Mapping[str, str] = {
    "claims": "agent {agent}: a bridge took a request {times.inbox_processing_timeout:g} s ago and did not finish; "
    "given back to be taken again",
    "dispatched_retry": "agent {agent}: no worker began its turn for {times.dispatched_retry:g} s; rung again",
    "resume": "agent {agent}: its sleeping turn was not woken by a report for {times.dispatched_retry:g} s; rung again",
    "suspended": "turn {turn} of {agent} slept beyond its deadline; its calls are answered as timed out",
    "stop": "turn {turn} of {agent} did not stop in {times.stop_grace:g} s; ended without its worker",
    "command": "{tool} has not answered for {silent:g} s; sent again (call {call}, turn {turn} of {agent})",
    "outcome": "a tool died in the middle of a call that must not be repeated; a person is asked, or it failed "
    "(call {call}, turn {turn} of {agent})",
    "batch": "{tool} did not make all of its turns; sent again (call {call}, turn {turn} of {agent})",
    "batch_due": "{batch} was decided: its deadline had passed, or its turn was over",
    "interrupts": "agent {agent}: nobody decided about {interrupt} in time; its call is answered so",
    "marked_queued": "turn {turn} of {agent} waited in a queue although its tree was stopped; ended",
    "marked": "turn {turn} of {agent} did not end with its tree in {times.stop_grace:g} s; ended without its worker",
    "stranded": "agent {agent}: it was idle with a turn in its queue; the turn was leased",
    "doorbell": "agent {agent}: {due}; taken up",
    "orphans": "a row for agent {agent}, which no roster has, was marked error",
    "unannounced": "turn {turn} of {agent}: NATS did not acknowledge its end for {times.unannounced:g} s; "
    "published again",
    "era": "turn {turn} of {agent} was in hand as the ledger's era began; started again from the ledger",
    "beyond": "ends that NATS told before the ledger's era, and that the ledger does not have, are in its rejections",
    "clock": "agent {agent}: the database's clock was set back; what was to wait until it is there again is due now",
    "engine": "turn {turn} of {agent} had no open workflow; started again, or ended if that was done too often",
    "engine_over": "turn {turn} is over and its workflow was still open; closed",
    "engine_unknown": "turn {turn} is unknown to the ledger that started its workflow; the workflow is closed",
    "dispatched_reap": "turn {turn} of {agent} was begun by no worker in {times.dispatched_timeout:g} s; ended",
    "running_reap": "turn {turn} of {agent} gave no sign of life for {times.active_reap:g} s; started again, "
    "or ended if that was done too often",
    "thread": "thread {thread}: a message was not begun, or its turn is over or late; woken",
    "thread_turn": "turn {turn}: the message it worked for was ended; asked to stop",
    "thread_reply": "request {message}: NATS did not acknowledge its answer; published again",
    "thread_engine": "thread {thread} has a message in flight and had no workflow; started again",
    "service": "agent {agent}: its turn was begun by a process of this service that is gone; begun again",
}
"""Sentences by rule. Repairs of any other rule are logged by the rule's name."""


def sentences(rule: str, found: Sequence[Any], mended: int, times: WatchdogTimes) -> Iterator[str]:
    """The log lines for what a rule mended at one tick.

    If it mended only some of what it found, it is not known which: then there is one line with all ids.
    """
    names = [_names(each, times) for each in found]
    if mended < len(found) or rule not in SENTENCES:
        ids = ", ".join(each["id"] for each in names[:LINES])
        yield f"rule {rule} mended {mended} of {len(found)}: {ids}{', …' if len(names) > LINES else ''}"
        return
    for each in names[:LINES]:
        yield SENTENCES[rule].format_map(each)
    if len(names) > LINES:
        yield f"rule {rule} mended {len(names) - LINES} more in this way"


def _names(found: Any, times: WatchdogTimes) -> dict[str, Any]:
    """The values for the placeholders of `SENTENCES`."""
    agent = agent_of(found)
    call, turn, thread = (_text_of(found, name) for name in ("tool_call_id", "agent_turn_id", "thread_id"))
    message, batch, interrupt = (_text_of(found, name) for name in ("request_id", "batch_id", "interrupt_id"))
    command = getattr(found, "command", None)
    return {
        "agent": agent,
        "turn": turn,
        "thread": thread,
        "message": message,
        "batch": batch,
        "interrupt": interrupt,
        "call": call,
        "tool": call if command is None else command.tool_name,
        "due": _due(found),
        "silent": times.command_retry * getattr(found, "repeat", 1),
        "times": times,
        "id": next(filter(None, (call, turn, thread, message, batch, interrupt, agent)), ""),
    }


def _due(found: Any) -> str:
    """How long a row waited, and for what: a deferred one for its time, a pending one for a doorbell."""
    if not isinstance(found, DueAgent):
        return "its inbox had a row that was due"
    if found.is_deferred:
        return f"a deferred row was due for {found.due_seconds:.1f} s"
    return f"a request was due for {found.due_seconds:.1f} s and no doorbell was heard"


def agent_of(found: Any) -> str:
    """The agent of a found thing, as project/agent; empty if it has none."""
    if isinstance(found, tuple):
        return "/".join(cast("AgentKey", found))
    agent = _text_of(found, "agent_id")
    return f"{_text_of(found, 'project_id')}/{agent}" if agent else ""


def _text_of(found: Any, name: str) -> str:
    return str(getattr(found, name, ""))
