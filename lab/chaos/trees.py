"""Trees of turns for chaos runs: what each turn of a tree says, and what must come of it.

A tree is the plan of its root. The plans of children are in the arguments of the calls that make them, so the model
needs nothing but its instruction. Each instruction also says how its turn and its batches must end unless somebody
stopped the turn; the verdict compares that with the ledger. Pure.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from turnstile.schema.base import JsonObject

MATES = 8
"""Agents that trees ask again; they fork nothing, so none can wait for itself."""
SLOW_WORDS, SLOW_SECONDS = 60, 0.5
TURNS_A_TREE = 9
"""About how many turns a tree has, for the duration of a run."""
AMPLE: JsonObject = {"max_tokens": 10**9, "max_cost_usd": 10_000, "max_turns": 10_000, "max_seconds": 86_400}
"""What bounds a tree without ever ending it."""

TREES: Mapping[str, int] = {
    "tree_all": 10,
    "tree_partly": 6,
    "tree_any": 10,
    "tree_first_k": 8,
    "tree_quorum": 8,
    "tree_fail_fast": 8,
    "tree_deadline": 8,
    "tree_finish": 6,
    "tree_chain": 8,
    "tree_nested": 12,
    "tree_twice": 6,
    "tree_free": 8,
    "tree_reuse": 6,
    "stop_tree": 12,
    "stop_whole": 8,
    "budget_tokens": 10,
    "budget_cost": 8,
    "budget_turns": 8,
    "budget_own": 10,
}
"""Kinds of trees with their weights; those whose kind begins with `stop` are stopped, `stop_whole` with all below.

Every tree has a budget: an ample one, or where its kind begins with `budget` one that it may reach the end of.
"""


@dataclass(frozen=True)
class Plan:
    """What one turn says, step by step. Arguments of its calls may hold further plans."""

    steps: Sequence[dict[str, Any]]
    joins: tuple[str, ...] = ()
    """What its batches may come to."""
    ends: str = "success"
    """How it ends."""
    budget: JsonObject | None = None
    """What it and its children may spend."""

    def instruction(self, key: str) -> str:
        """The instruction of the turn. Keys of children are `{key}.{number}`."""
        keys = (f"{key}.{number}" for number in range(10_000))

        def written(value: Any) -> Any:
            match value:
                case Plan():
                    return value.instruction(next(keys))
                case dict():
                    return {name: written(item) for name, item in cast("dict[str, Any]", value).items()}
                case list():
                    return [written(item) for item in cast("list[Any]", value)]
                case _:
                    return value

        plan = {"key": key, "steps": [written(step) for step in self.steps], "ends": self.ends, "joins": self.joins}
        return json.dumps(plan)


@dataclass(frozen=True)
class Grower:
    """Draws trees."""

    draw: random.Random
    project_profile: str
    _last: dict[str, Any] = field(default_factory=lambda: {"text": "All of it is done now.", "delay": 0.01})

    def tree(self, kind: str) -> Plan:
        """A tree of this kind."""
        grown = self._grown(kind)
        return grown if grown.budget is not None else replace(grown, budget=AMPLE)

    def _grown(self, kind: str) -> Plan:
        draw = self.draw
        match kind:
            case "budget_tokens" | "budget_cost" | "budget_turns" | "budget_own":
                return self._bounded(kind.removeprefix("budget_"))
            case "tree_all":
                return self.forked([self.leaf() for _ in range(draw.randint(1, 6))], "success")
            case "tree_partly":
                return self.forked([self.leaf(), self.failing(), self.leaf()], "partial", join="all")
            case "tree_any" | "tree_first_k" | "tree_quorum" | "tree_finish":
                return self._joined(kind.removeprefix("tree_"))
            case "tree_fail_fast":
                return self.forked([self.slow(), self.failing(), self.slow()], "failed", fail_fast=True)
            case "tree_deadline":
                return self._late()
            case "tree_chain":
                return self.chain(draw.randint(2, 3))
            case "tree_nested":
                return self.nested(draw.randint(2, 3))
            case "tree_twice":
                calls = [self.call([self.leaf(), self.leaf()]), self.call([self.leaf()]), ["quick", {"n": 1}]]
                return Plan([{"calls": calls}, {"calls": [self.call([self.leaf()])]}, self._last], ("success",))
            case "tree_free":
                return self._free(slow=False)
            case "tree_reuse":
                return self._reusing()
            case "stop_whole":
                return self._free(slow=True)
            case _:  # stop_tree
                inner = self.forked([self.slow(), self.chain(2, self.slow())], "success")
                return self.forked([self.slow(), inner, self.leaf()], "success")

    def leaf(self) -> Plan:
        """A turn without children, some with a tool."""
        words = {"text": "word " * self.draw.randint(2, 12), "delay": self.draw.uniform(0.005, 0.05)}
        return Plan([{"calls": [["quick", {"n": 1}]]}, words] if self.draw.random() < 0.3 else [words])

    def failing(self) -> Plan:
        """A turn that fails."""
        return Plan([{"text": "I try.", "delay": 0.02, "error": "chaos"}], ends="failed")

    def slow(self, seconds: float | None = None) -> Plan:
        """A turn that streams for a long time, so that it is there to be stopped."""
        words = SLOW_WORDS if seconds is None else max(1, round(seconds / SLOW_SECONDS))
        return Plan([{"text": "word " * words, "delay": SLOW_SECONDS}])

    def forked(self, children: Sequence[Plan], *joins: str, **fields: Any) -> Plan:
        """A turn that forks these children, and what its batch may come to."""
        return Plan([{"calls": [self.call(children, **fields)]}, self._last], joins)

    def call(self, children: Sequence[Plan], **fields: Any) -> list[Any]:
        """The call that forks them."""
        return ["fork_join", {"tasks": [self._task(child) for child in children], **fields}]

    def chain(self, depth: int, end: Plan | None = None) -> Plan:
        """A turn that waits for one that waits for one …, down to `end`."""
        below = (end or self.leaf()) if depth <= 1 else self.chain(depth - 1, end)
        if self.draw.random() < 0.5:
            arguments = {"expert_profile": self.project_profile, "question": below, "include_history": True}
            return Plan([{"text": "I ask.", "calls": [["ask_expert", arguments]]}, self._last], ("success",))
        call = ["delegate_async", {**self._task(below), "wait": True}]
        return Plan([{"calls": [call]}, self._last], ("success",))

    def nested(self, depth: int) -> Plan:
        """Forks of forks, the inner ones with any join."""
        if depth <= 1:
            kinds = ["tree_all", "tree_any", "tree_partly", "tree_quorum", "tree_fail_fast"]
            return self._grown(self.draw.choice(kinds))
        return self.forked([*(self.nested(depth - 1) for _ in range(self.draw.randint(1, 2))), self.leaf()], "success")

    def _task(self, plan: Plan, strategy: str = "new", target: str | None = None) -> dict[str, Any]:
        task = {"target_strategy": strategy, "target_ref": target or self.project_profile, "instruction": plan}
        budget = plan.budget
        if budget is None and not plan.joins and self.draw.random() < 0.4:  # none for its children to ask for
            budget = {"max_tokens": 10**6, "max_cost_usd": 10}
        return task if budget is None else {**task, "budget": budget}

    def _bounded(self, by: str) -> Plan:
        """A tree whose budget is sometimes too small: some of it ends with what there is, or is refused."""
        draw, joins = self.draw, ("success", "partial", "failed")
        leaves = [self.leaf() for _ in range(draw.randint(3, 8))]
        inner = self.forked([self.leaf(), self.leaf(), self.failing()], *joins)
        match by:
            case "tokens":  # one rest for all, which takes about 5,000 for each attempt
                budget: JsonObject = {"max_tokens": draw.randint(6_000, 90_000)}
            case "cost":
                budget = {"max_cost_usd": draw.randint(10_000, 200_000) / 1_000_000}
            case "turns":
                budget = {"max_turns": draw.randint(1, 9)}
            case _:  # own: grants of grants
                budget = {"max_tokens": draw.randint(60_000, 200_000), "max_turns": 12}
                leaves = [replace(leaf, budget={"max_tokens": draw.randint(4_000, 30_000)}) for leaf in leaves]
                inner = replace(inner, budget={"max_tokens": draw.randint(10_000, 60_000), "max_turns": 4})
        return replace(self.forked([*leaves, inner], *joins), budget=budget)

    def _joined(self, mode: str) -> Plan:
        match mode:
            case "any":
                return self.forked([self.slow(), self.leaf(), self.slow()], "success", join="any")
            case "first_k":
                children = [*(self.leaf() for _ in range(2)), self.slow(), self.failing()]
                return self.forked(children, "success", join="first_k", k=2)
            case "quorum":
                if self.draw.random() < 0.5:
                    return self.forked([self.leaf(), self.failing(), self.leaf()], "success", join="quorum")
                return self.forked([self.failing(), self.failing(), self.slow()], "failed", join="quorum")
            case _:  # finish
                seconds = self.draw.uniform(2, 5)
                return self.forked([self.leaf(), self.slow(seconds)], "success", join="any", losers="finish")

    def _late(self) -> Plan:
        deadline = round(self.draw.uniform(1, 4), 1)
        if self.draw.random() < 0.5:
            return self.forked([self.leaf(), self.slow()], "timeout", deadline_seconds=deadline)
        options: JsonObject = {"deadline_seconds": deadline, "join": "all"}
        return self.forked([self.leaf(), self.slow(), self.chain(2, self.slow())], "partial", "timeout", **options)

    def _free(self, *, slow: bool) -> Plan:
        """Children that nobody waits for, which have children themselves; beside them those that are waited for."""
        below = self.forked([self.slow(), self.slow()] if slow else [self.leaf()], "success")
        clone = self._task(self.leaf(), "clone", f"mate-{self.draw.randrange(MATES)}")
        free: list[Any] = [["delegate_async", self._task(below)], ["delegate_async", clone]]
        request = {"profile_name": self.project_profile, "instruction": self.slow() if slow else self.leaf()}
        call = self.call([self.slow()] if slow else [self.leaf()])
        return Plan([{"calls": [*free, ["launch_principal", request], call]}, self._last], ("success",))

    def _reusing(self) -> Plan:
        mates = self.draw.sample(range(MATES), 3)
        tasks = [self._task(self.leaf(), "reuse", f"mate-{number}") for number in mates]
        return Plan([{"calls": [["fork_join", {"tasks": tasks}]]}, self._last], ("success",))
