"""What no move may do, whatever the audit says of the state after it: rules on two states, one after the other."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lab.explore.states.folding import AHEAD, Rows

_GATES = "a gate opened under its mark"
_NEVER = {"cards", "boxes", "box_cards", "agent_steps", "execution_edges"}
"""Rows that are what they are from the moment that they are there."""
_FINAL_CALLS = {"applied", "expired", "dropped"}
_OPEN = {"running", "pending", "dispatched"}
_DECIDED = ("status", "decided_by", "error_code")
_HEARD = {"applied", "skipped"}
_HOW = ("status", "deliverable_card_id", "tool_result_card_id", "output_box_id", "error_code", "turn_epoch")


def broken_by(before: Rows, changed: Rows) -> list[str]:
    """What the move broke that wrote `changed`, one sentence for each."""
    return list(_broken(before, changed))


def _broken(before: Rows, changed: Rows) -> Iterator[str]:
    for (table, key), text in changed.items():
        earlier = before.get((table, key))
        if earlier is None:
            yield from _came(before, table, json.loads(text))
        else:
            old, new = json.loads(earlier), json.loads(text)
            yield from _turned(table, key, old, new)
            if table == "steers" and (old["status"], new["status"]) == ("waiting", "taken"):
                yield from _taken(before, new)
            if table == "agent_state_head" and new["step_attempt"] > old["step_attempt"]:
                yield from [f"{key}: {_GATES}"] * _marked(before, new["active_agent_turn_id"])


def _came(before: Rows, table: str, row: Mapping[str, Any]) -> Iterator[str]:
    """A row came that was not there."""
    if table == "box_cards":
        yield from _entered(before, row)
    if table == "agent_inbox":
        yield from _timed_out(before, row)
    if table == "turn_nodes" and _marked(before, row["parent_turn_id"]):
        yield f"{row['agent_turn_id']} was made under the mark of its parent"
    if table == "turn_waiting_tools" and _marked(before, row["agent_turn_id"]):
        yield f"{row['tool_call_id']}: {_GATES}"


def _turned(table: str, key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """A row changed."""
    match table:
        case "turn_outcomes":
            if any(old[name] != new[name] for name in _HOW):
                yield f"the outcome of {key} changed"
        case "turn_waiting_tools":
            if old["wait_status"] in _FINAL_CALLS and old["wait_status"] != new["wait_status"]:
                yield f"the call {key} was {old['wait_status']} and is {new['wait_status']}"
        case "agent_inbox":
            if old["archived_at"] is not None and old["status"] != new["status"]:
                yield f"the row {key} was final as {old['status']} and is {new['status']}"
        case "pmo_batches" | "pmo_batch_tasks":
            yield from _settled(key, old, new)
        case "turn_nodes":
            yield from _unmarked(key, old, new)
        case "steers":
            yield from _heard_again(key, old, new)
        case "agent_state_head":
            if new["turn_epoch"] < old["turn_epoch"]:
                yield f"the epoch of {key} fell"
            if old["active_agent_turn_id"] != new["active_agent_turn_id"]:
                yield from _moved(key, old, new)
        case _:
            if table in _NEVER and _said(old) != _said(new):
                yield f"{table} {key} changed"


def _taken(before: Rows, steer: Mapping[str, Any]) -> Iterator[str]:
    """A step takes a steer in its first attempt: an earlier one would not ask with it, and may commit."""
    for (table, _), text in before.items():
        if table == "agent_state_head":
            head = json.loads(text)
            if head["active_agent_turn_id"] == steer["agent_turn_id"] and head["step_attempt"]:
                yield f"{steer['steer_id']} was taken by a step that had been begun"


def _heard_again(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """A steer stays applied or skipped, and with the step that took it."""
    final = old["status"] in _HEARD and old["status"] != new["status"]
    if final or old["step_id"] not in {None, new["step_id"]}:
        yield f"{key} was {old['status']} by {old['step_id']} and is {new['status']} by {new['step_id']}"


def _marked(before: Rows, turn: str | None) -> bool:
    """Whether the turn was marked."""
    text = before.get(("turn_nodes", turn or ""))
    return text is not None and json.loads(text)["stopping_at"] is not None


def _settled(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """A batch and a task are decided once, a batch by its deadline only when that has passed."""
    if old["status"] not in _OPEN and any(old[name] != new[name] for name in _DECIDED if name in old):
        yield f"{key} was {old['status']} and is {new['status']}"
    if new["status"] == "timeout" != old["status"] and old.get("deadline_at") == AHEAD:
        yield f"{key} timed out before its deadline"


def _unmarked(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """A node stays where it is, what was marked stays marked by whom it was, and what is over stays over."""
    if any(old[name] != new[name] for name in ("parent_turn_id", "root_turn_id", "waited")):
        yield f"the node {key} moved"
    if old["stopping_at"] is not None and any(old[name] != new[name] for name in ("stop_reason", "stopped_by")):
        yield f"the mark of {key} changed"
    if (old["ended"] and not new["ended"]) or (old["stopping_at"] is not None and new["stopping_at"] is None):
        yield f"the node {key} was opened again"


def _said(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a row says, without the moments and numbers that the canonical form replaces."""
    left_out = {"created_at", "updated_at", "started_at", "ended_at", "made_by"}
    values = {name: value for name, value in row.items() if name not in left_out}
    if isinstance(values.get("metadata"), dict):
        values["metadata"] = {name: value for name, value in values["metadata"].items() if name != "created_at"}
    return values


def _moved(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """The head is on another turn: each lease has an epoch of its own."""
    if new["active_agent_turn_id"] is not None and new["turn_epoch"] <= old["turn_epoch"]:
        yield f"{key} was leased to {new['active_agent_turn_id']} under the epoch of the lease before"


def _timed_out(before: Rows, row: Mapping[str, Any]) -> Iterator[str]:
    """A call timed out: the deadline of its turn had passed, or was cleared."""
    if row["message_type"] != "timeout":
        return
    for (table, _), text in before.items():
        if table != "agent_state_head":
            continue
        head = json.loads(text)
        if head["active_agent_turn_id"] == row["agent_turn_id"] and head["resume_deadline"] == AHEAD:
            yield f"the call {row['correlation_id']} timed out before its deadline"


def _entered(before: Rows, place: Mapping[str, Any]) -> Iterator[str]:
    """A card entered a box that was there: only as the next one, and never a context box."""
    box = place["box_id"]
    if ("boxes", box) not in before:
        return
    rows = [json.loads(text) for (table, _), text in before.items() if table == "agent_inbox"]
    named = [row["payload"] for row in rows if row["message_type"] in {"turn", "ui_action"}]
    if any(n["context_box_id"] == box for n in named) and not any(n["output_box_id"] == box for n in named):
        yield f"the card {place['card_id']} entered the context box {box}"
