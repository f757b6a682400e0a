"""Scripted models for the agents of `turnstile demo-tree`; they speak slowly enough to be watched."""

import json
from typing import Any

from turnstile.activities.models import Script, ScriptLine
from turnstile.activities.models.script import ScriptCall, ScriptError
from turnstile.runtime.ports import ModelRequest
from turnstile.schema.base import JsonObject

_FOUND = {
    "papers": "Durable execution is as old as the write-ahead log.",
    "old books": "Sagas were written down in 1987.",
    "new books": "Every shelf has one on agents now.",
    "code": "A turn is a handful of rows, and an update that is gated.",
}


def researcher(request: ModelRequest) -> ScriptLine:
    """Forks three searchers, then says what came of each."""
    if request.step == 1:
        tasks = [_task("searcher", where) for where in ("papers", "users", "code")]
        return _fork(tasks, "Three searchers shall look.", join="all")
    return ScriptLine(text=" ".join(_sentences(request)), chunks=8, delay_seconds=0.05)


def searcher(request: ModelRequest) -> ScriptLine:
    """Looks by itself; for the papers it asks two readers, and takes the first answer; the users do not answer."""
    match _asked(request):
        case "papers" if request.step == 1:
            readers = [_task("reader", "new books"), _task("reader", "old books")]
            return _fork(readers, "Two readers, and the first answer counts.", join="any")
        case "papers":
            return ScriptLine(text=" ".join(_sentences(request)), chunks=4, delay_seconds=0.2)
        case "users":
            refused = ScriptError(code="model_error", message="nobody answers", retryable=False, after_chunks=1)
            return ScriptLine(text="I ask them.", chunks=2, delay_seconds=1.0, error=refused)
        case where:
            return ScriptLine(text=_FOUND.get(where, "Nothing."), chunks=10, delay_seconds=0.4)


def reader(request: ModelRequest) -> ScriptLine:
    """Reads old books quickly, and new ones slowly."""
    where = _asked(request)
    return ScriptLine(text=_FOUND.get(where, "Nothing."), chunks=5, delay_seconds=0.3 if where == "old books" else 3.0)


def _task(profile: str, where: str) -> JsonObject:
    return {"target_strategy": "new", "target_ref": profile, "instruction": where, "label": where}


def _fork(tasks: list[JsonObject], text: str, *, join: str) -> ScriptLine:
    arguments: JsonObject = {"tasks": [*tasks], "join": join}
    call = ScriptCall(name="fork_join", arguments=arguments)
    return ScriptLine(text=text, chunks=3, delay_seconds=0.2, tool_calls=(call,))


def _asked(request: ModelRequest) -> str:
    return next((message.content for message in reversed(request.messages) if message.role == "user"), "")


def _sentences(request: ModelRequest) -> list[str]:
    """A sentence for each result of the fork."""
    reply: Any = json.loads(next(message.content for message in reversed(request.messages) if message.role == "tool"))
    return [
        f"From {result['label']}: {result['summary']}"
        if result["status"] == "success"
        else f"{result['label']}: nothing."
        for result in reply["result"]["results"]
    ]


SCRIPTS: dict[str, Script] = {"tree_researcher": researcher, "tree_searcher": searcher, "tree_reader": reader}
