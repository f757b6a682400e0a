"""Nothing of an agent, a turn or a step is kept on `self` (protocol §10.6): what objects of worker and bridge change.

Read are the classes of activities and bridge. What a method changes of its object, after that was made, is either an
object that one call makes and drops, or it is listed in ARCHITECTURE.md, *What objects hold between calls*.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.docs.conformance import section
from tests.support.paths import ROOT

OF_ONE_CALL = {
    *(
        "BudgetGate",
        "AnswerDraft",
        "Overheard",
        "ProviderStream",
        "WireReader",
        "ChatForm",
        "MessagesForm",
        "CandidatesForm",
        "Gathered",
        "_Calls",
        "ReasoningDraft",
        "TaggedReasoning",
        "ChunkWriter",
        "CallNames",
        "_Pairs",
        "_Thoughts",
        "_Results",
        "_Chain",
        "Attempts",
        "Pass",
    ),  # of a step
    "_Turning",  # of a change of a queue
    "RequestPayload",  # of a request
}
KEPT = {
    "AdmissionCache": {"_spare"},
    "ClaimQueue": {"_group", "_offered", "_rung", "runs"},
    "Claims": {"counts"},
    "Doorbells": {"undecodable"},
    "DurableCommands": {"_failed"},
    "EndpointStats": {"last_error", "num_errors", "num_requests", "processing_nanoseconds"},
    "FairQueue": {"_projects", "_reasons"},
    "FileReader": {"_bytes", "_known"},
    "InboxService": {"_stopped", "_tasks"},
    "LitellmModel": {"_sdk"},
    "Looks": {"compared_at", "engine", "latest_close", "listed_at", "settled"},
    "ModelQueues": {"_clock", "_copies", "_tasks"},
    "NatsPublisher": {"_declare_after", "_declaring", "counts"},
    "PromptClaims": {"_starting"},
    "PushSender": {"_in_hand"},
    "Reconciler": {"looks"},
    "RunningMessages": {"_tasks"},
    "ServedTargets": {"_now"},
    "Starter": {"_ledger", "counts"},
    "UiActions": {"unreadable"},
    "VerbService": {"_of_project", "_subscriptions", "_tasks", "dropped"},
    "Windows": {"limits"},
    "Watchdog": {"_duty_tried_at", "_errors", "repairs"},
}
"""What the methods of an object of a process change of it: queues, tasks, figures, what was seen last."""
LOCKS = {
    "LitellmModel": "the SDK is loaded once",
    "VerbService": "requests at once",
    "InboxService": "turns at once",
    "Schedules": "firings at once",
}
"""What their locks and semaphores bound: throttling and loading, never a turn's state."""
_CHANGES = {
    *("append", "appendleft", "add", "pop", "popleft", "popitem", "discard", "update", "clear", "setdefault", "extend"),
    *("remove", "insert", "move_to_end", "subtract"),
}
_MAKING = {"__init__", "__post_init__"}


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for top in ("rules", "activities", "bridge"):
        for path in sorted((ROOT / top).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            yield from ((path, each) for each in ast.walk(tree) if isinstance(each, ast.ClassDef))


def methods(of: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (each for each in of.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def own(target: ast.expr) -> str | None:
    """The attribute of `self` that a change of this expression changes."""
    match target:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            return own(inner)
        case _:
            return None


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement or call changes."""
    match node:
        case ast.Assign(targets=found) | ast.Delete(targets=found):
            return [part for each in found for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return [target]
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _CHANGES:
            return [value]
        case _:
            return []


def changed(of: ast.ClassDef) -> set[str]:
    """The attributes that methods change of their object, after it was made."""
    nodes = (node for each in methods(of) if each.name not in _MAKING for node in ast.walk(each))
    return {name for node in nodes for each in targets(node) if (name := own(each)) is not None}


def test_what_objects_keep_is_listed() -> None:
    listed = section((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), "## What objects hold between calls")
    assert {of.name: names for _, of in classes() if (names := changed(of)) and of.name not in OF_ONE_CALL} == KEPT
    assert [name for name in KEPT if f"`{name}`" not in listed] == []
    assert {of.name for _, of in classes() if changed(of)} >= OF_ONE_CALL, "a name that is no exception any more"


def test_an_object_with_activities_changes_nothing_of_its_own() -> None:
    found = {
        of.name: changed(of)
        for _, of in classes()
        if any("activity.defn" in ast.unparse(mark) for each in methods(of) for mark in each.decorator_list)
    }
    assert {name for name, names in found.items() if names} == set()
    assert {"StepActivities", "SettleActivities", "PumpActivities"} <= found.keys()


def test_locks_bound_what_runs_at_once_and_guard_no_state_of_turns() -> None:
    words = ("asyncio.Lock(", "asyncio.Semaphore(", "asyncio.Condition(", "threading.Lock(")
    found = {of.name for _, of in classes() if any(word in ast.unparse(of) for word in words)}
    assert found == set(LOCKS)
