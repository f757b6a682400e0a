"""The agents of a measurement: the scripts of their models, their profile and their tools."""

import json
from collections.abc import Sequence
from pathlib import Path

from lab.bench.plan import Plan
from lab.bench.streaming import timed_model
from lab.bench.tool import tools
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import add_agent, put_profile, put_tool
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.ids import AgentId, ProjectId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.tools import PmoTool, ToolDefinition
from turnstile.schema.wire import subjects

CHUNKS_PER_SECOND = 50
LONG_SECONDS = 180.0
"""Streaming time of the models whose turns are stopped."""
BIG_BYTES = 400_000
"""What the turn says that stuck clients ask for."""
PROFILE = "bench"
SLOW = "bench_slow"
"""A script that takes a tenth of a second."""
USUAL, USUAL_CALLER = "bench_usual", "bench_usual_tool"
"""Scripts whose answers take 300 ms: one without a tool call, one with a call that takes 10 ms."""
_USUAL_PACE: JsonObject = {"delay_seconds": 0.3}
_WORD = "word "
_ANSWER_TOKENS = 128
"""The most tokens of a real model's answer."""
LATER = ToolDefinition(
    tool_name="bench_later",
    description="Answers later.",
    target_subject=subjects.tool_target("bench", "later"),
)


def write_scripts(directory: Path, plan: Plan) -> list[Path]:
    """Write the scripts of a run; returns the files.

    They are one with an answered tool call, one with an unanswered one, two that stream, and those that fork. Those of
    `timed_model`, which is a file already, are added.
    """
    last_step: JsonObject = {"text": "done"}
    steps: dict[str, list[JsonObject]] = {
        "bench_tool": [{"tool_calls": [{"name": "bench_now", "arguments": {}}]}, last_step],
        "bench_later": [{"tool_calls": [{"name": "bench_later", "arguments": {}}]}, last_step],
        "bench_stream": [_stream(plan.stream_seconds)],
        "bench_long": [_stream(LONG_SECONDS)],
        "bench_big": [{"text": _WORD * (BIG_BYTES // len(_WORD))}],
        USUAL: [{**last_step, **_USUAL_PACE}],
        USUAL_CALLER: [
            {"tool_calls": [{"name": "bench_soon", "arguments": {}}], **_USUAL_PACE},
            {**last_step, **_USUAL_PACE},
        ],
        SLOW: [{"text": "Slowly done.", "delay_seconds": 0.1}],
        "bench_sse": [
            {"text": streamed_text(plan), "chunks": plan.sse_chunks, "delay_seconds": plan.sse_gap_seconds},
        ],
    }
    steps |= {forker_of(size): [_fork(size, PROFILE), last_step] for size in plan.forks}
    width = plan.fork_width
    for depth in range(1, plan.fork_depth + 1):
        below = PROFILE if depth == 1 else tree_of(depth - 1, width)
        steps[tree_of(depth, width)] = [_fork(width, below), last_step]
    paths = [timed_model.PATH]
    for name, script in steps.items():
        path = directory / f"{name}.yaml"
        path.write_text(json.dumps({"name": name, "steps": script}), encoding="utf-8")  # JSON is YAML
        paths.append(path)
    return paths


def streamed_text(plan: Plan) -> str:
    """What the turns of `gateway` say."""
    return "".join(f"word-{number} " for number in range(plan.sse_chunks))


def forker_of(size: int) -> AgentId:
    """The agent whose turns fork so many children; its profile and its script have the same name."""
    return AgentId(f"bench_fork_{size}")


def tree_of(depth: int, width: int) -> AgentId:
    """The agent whose turns fork trees of this depth and width; its profile and its script have the same name."""
    return AgentId(f"bench_tree_{depth}_{width}")


def _fork(size: int, profile: str) -> JsonObject:
    task: JsonObject = {"target_strategy": "new", "target_ref": profile, "instruction": "hello"}
    arguments: JsonObject = {"tasks": [task for _ in range(size)]}
    return {"tool_calls": [{"name": "fork_join", "arguments": arguments}]}


def _stream(seconds: float) -> JsonObject:
    chunks = round(seconds * CHUNKS_PER_SECOND)
    return {"text": _WORD * chunks, "chunks": chunks, "delay_seconds": 1 / CHUNKS_PER_SECOND}


async def add_forker(pool: Pool, project: ProjectId, target: str, agent: AgentId) -> None:
    """Add an agent that forks, with a profile and the script of its name."""
    profile = Profile(
        name=agent,
        worker_target=target,
        system_prompt_template="You are {agent_id}.",
        allowed_tools=[PmoTool.FORK_JOIN],
        delegation_policy=DelegationPolicy(target_profiles=None),
        llm_config=LlmConfig(model=f"scripted/{agent}"),
    )
    await put_profile(pool, project, profile)
    await add_agent(pool, project, agent, agent)


async def add_players(
    pool: Pool, project: ProjectId, target: str, script: str, label: str, count: int
) -> list[AgentId]:
    """Add `count` agents, named by the label, with a profile and the script of this name."""
    profile = Profile(
        name=script,
        worker_target=target,
        system_prompt_template="You are {agent_id}.",
        llm_config=LlmConfig(model=f"scripted/{script}"),
    )
    await put_profile(pool, project, profile)
    agents = [AgentId(f"{label}-{number}") for number in range(count)]
    for agent in agents:
        await add_agent(pool, project, agent, script)
    return agents


async def add_agents(pool: Pool, project: ProjectId, target: str, model: str, count: int) -> list[AgentId]:
    """Add `count` agents to the project, on the model `scripted/{model}`, or `model` if it is an id.

    They have both tools if the script calls tools.
    """
    for tool in [*tools.definitions(), LATER]:
        await put_tool(pool, project, tool)
    profile = Profile(
        name=PROFILE,
        worker_target=target,
        system_prompt_template="You are {agent_id}.",
        instances=True,
        allowed_tools=[tool.tool_name for tool in [*tools.definitions(), LATER]] if model in _CALLERS else [],
        llm_config=LlmConfig(model=model, max_tokens=_ANSWER_TOKENS)
        if "/" in model
        else LlmConfig(model=f"scripted/{model}"),
    )
    await put_profile(pool, project, profile)
    agents = [AgentId(f"agent-{number}") for number in range(count)]
    await _add(pool, project, agents)
    return agents


_CALLERS = ("bench_tool", "bench_later", USUAL_CALLER)


async def _add(pool: Pool, project: ProjectId, agents: Sequence[AgentId]) -> None:
    for agent in agents:
        await add_agent(pool, project, agent, PROFILE)
