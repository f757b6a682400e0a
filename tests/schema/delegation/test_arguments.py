"""Arguments of delegating tools: what v1r4 reads is read, and all else is refused with its code (protocol §12)."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.arguments import (
    DelegateArguments,
    ExpertArguments,
    ForkArguments,
    LaunchArguments,
    arguments_of,
)
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.delegation.provision import ProvisionRefused, provision_arguments
from turnstile.schema.delegation.refusals import DelegationRefused
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import BoxId
from turnstile.schema.parameters import object_schema
from turnstile.schema.tools import PMO_TOOLS, ToolDefinition

TASK: JsonObject = {"target_strategy": "new", "target_ref": "Searcher", "instruction": "Look."}
BOX = "0190b8a0-0000-7000-8000-000000000001"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
NAMES = ("tasks", "target_strategy", "target_ref", "instruction", "context_box_id", "k", "join", "losers", "wait")
MORE = ("fail_fast", "deadline_seconds", "action", "agent_id", "profile_name", "question", "expert_profile", "tags")


def refusal(model: Any, given: JsonObject) -> str:
    with pytest.raises(DelegationRefused) as refused:
        arguments_of("fork_join", model, given)
    assert (refused.value.code, refused.value.reason) == ("bad_request", "invalid_arguments")
    return str(refused.value)


@given(st.dictionaries(st.sampled_from((*NAMES, *MORE)), JSON | st.lists(st.just(TASK), max_size=3), max_size=6))
def test_whatever_is_given_is_read_or_refused(arguments: dict[str, Any]) -> None:
    for model in (DelegateArguments, ExpertArguments, ForkArguments, LaunchArguments):
        with suppress(DelegationRefused):
            assert isinstance(arguments_of("x", model, arguments), model)
    with suppress(ProvisionRefused, BadRequest):
        assert provision_arguments(arguments).agent_id


def test_what_v1r4_reads_is_read() -> None:
    task = {**TASK, "target_strategy": " NEW ", "target_ref": " Searcher ", "context_box_id": ""}
    fork = arguments_of("fork_join", ForkArguments, {"tasks": [task], "fail_fast": "yes", "deadline_seconds": "30"})
    assert (fork.fail_fast, fork.deadline_seconds, fork.join) == (True, 30.0, None)
    assert (fork.tasks[0].target_strategy, fork.tasks[0].target_ref) == ("new", "Searcher")
    assert fork.tasks[0].context_box_id is None


@pytest.mark.parametrize("deadline", [0, -1, "0", True, "soon", float("nan"), float("inf"), 1e300, []])
def test_a_deadline_is_a_positive_number(deadline: Any) -> None:
    assert "args.deadline_seconds" in refusal(ForkArguments, {"tasks": [TASK], "deadline_seconds": deadline})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"join": "first_k"}, "needs k"),
        ({"join": "first_k", "k": 3}, "at most the number of tasks"),
        ({"join": "first_k", "k": 0}, "args.k"),
        ({"join": "first_k", "k": True}, "args.k"),
        ({"join": "all", "k": 1}, "k goes with"),
        ({"k": 1}, "k goes with"),
        ({"join": "most"}, "args.join"),
        ({"losers": "kill"}, "args.losers"),
        ({"fail_fast": "perhaps"}, "boolean"),
        ({"purse": 3}, "args.purse"),
    ],
)
def test_what_is_out_of_range_is_refused(more: JsonObject, said: str) -> None:
    assert said in refusal(ForkArguments, {"tasks": [TASK, TASK], **more})


@pytest.mark.parametrize("task", [{}, {**TASK, "target_strategy": "old"}, {**TASK, "instruction": " "}, "Searcher"])
def test_a_bad_task_is_named_by_its_place(task: Any) -> None:
    assert "args.tasks.1" in refusal(ForkArguments, {"tasks": [TASK, task]})


HOSTILE_BUDGETS: list[Any] = [
    *(3, "much", [], {"warn_percent": 50}, {"max_tokens": -1}, {"max_tokens": 1.5}, {"max_tokens": True}),
    *({"max_tokens": 10**30}, {"max_tokens": "1000"}),
    *({"max_cost_usd": -0.01}, {"max_cost_usd": 0.0000001}, {"max_cost_usd": float("nan")}, {"max_cost_usd": 1e300}),
    *({"max_cost_usd": "inf"}, {"max_turns": "three"}, {"max_seconds": -5}, {"max_dollars": 1}),
]


@pytest.mark.parametrize("budget", HOSTILE_BUDGETS, ids=repr)
def test_a_budget_that_is_none_is_refused_by_its_place(budget: Any) -> None:
    assert "args.tasks.1.budget" in refusal(ForkArguments, {"tasks": [TASK, {**TASK, "budget": budget}]})
    assert "args.budget" in refusal(DelegateArguments, {**TASK, "budget": budget})
    asked: JsonObject = {"expert_profile": "Law", "question": "May I?"}
    assert "args.budget" in refusal(ExpertArguments, {**asked, "budget": budget})
    assert "args.budget" in refusal(LaunchArguments, {"profile_name": "Law", "instruction": "Go.", "budget": budget})


def test_a_budget_is_the_tasks_whatever_tool_asks() -> None:
    budget: JsonObject = {"max_tokens": 100, "max_cost_usd": 0.25}
    question: JsonObject = {"expert_profile": "Law", "question": "May I?", "budget": budget}
    launch: JsonObject = {"profile_name": "Law", "instruction": "Go.", "budget": budget}
    tasks = [
        arguments_of("delegate_async", DelegateArguments, {**TASK, "budget": budget}),
        arguments_of("ask_expert", ExpertArguments, question).task(None),
        arguments_of("launch_principal", LaunchArguments, launch).task(),
        arguments_of("fork_join", ForkArguments, {"tasks": [{**TASK, "budget": budget}]}).tasks[0],
    ]
    for task in tasks:
        assert task.budget is not None
        assert task.budget.stored() == {"max_tokens": 100, "max_cost": 250_000}


def test_a_fork_has_tasks() -> None:
    assert "args.tasks" in refusal(ForkArguments, {"tasks": []})


def test_a_refusal_quotes_no_argument() -> None:
    assert "hush" not in refusal(ForkArguments, {"tasks": [{**TASK, "target_strategy": "hush"}]})


@pytest.mark.parametrize(
    ("more", "needed"),
    [({}, 3), ({"join": "all"}, 3), ({"join": "any"}, 1), ({"join": "first_k", "k": 2}, 2), ({"join": "quorum"}, 2)],
)
def test_how_many_successes_are_enough(more: JsonObject, needed: int) -> None:
    assert arguments_of("fork_join", ForkArguments, {"tasks": [TASK, TASK, TASK], **more}).needed == needed


def test_null_is_as_good_as_nothing() -> None:
    optional = ("profile_name", "profile_box_id", "derived_from", "display_name", "owner_agent_id", "worker_target")
    given: JsonObject = {"action": "ensure", "agent_id": "a", **dict.fromkeys((*optional, "tags", "metadata"))}
    assert provision_arguments(given) == provision_arguments({"action": "ensure", "agent_id": "a"})
    nothing: JsonObject = dict.fromkeys(("deadline_seconds", "join", "k", "fail_fast"))
    assert arguments_of("fork_join", ForkArguments, {"tasks": [TASK], **nothing}).deadline_seconds is None


def test_an_expert_is_waited_for_and_reads_what_it_is_given() -> None:
    asked = arguments_of("ask_expert", ExpertArguments, {"expert_profile": "Law", "question": "May I?"})
    assert asked.wait
    assert asked.task(BoxId(BOX)).context_box_id is None
    known = asked.model_copy(update={"include_history": True})
    assert known.task(BoxId(BOX)).context_box_id == BOX


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "invalid_action"),
        ({"action": "drop", "agent_id": "a"}, "invalid_action"),
        ({"action": "ensure"}, "missing_agent_id"),
        ({"action": "ensure", "agent_id": "a", "tags": "x"}, "invalid_tags"),
        ({"action": "ensure", "agent_id": "a", "metadata": [1]}, "invalid_metadata"),
        ({"action": "ensure", "agent_id": "a", "metadata": {"instance_of": "x"}}, "invalid_metadata"),
        ({"action": "derive", "agent_id": "a"}, "missing_derived_from"),
    ],
)
def test_provisioning_is_refused_with_v1r4s_codes(arguments: JsonObject, code: str) -> None:
    with pytest.raises(ProvisionRefused) as refused:
        provision_arguments(arguments)
    assert refused.value.result() == {"status": "rejected", "error_code": code}


def test_the_kernels_own_tools_are_ones_that_can_be_put() -> None:
    assert set(kernel_tools()) == PMO_TOOLS
    for row in kernel_tools().values():
        ToolDefinition.model_validate(row.model_dump(mode="json"))
        object_schema(row.parameters)
