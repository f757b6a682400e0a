"""Subjects `cg.{ver}.{project_id}.{channel_id}.{category}.{component}.{target}.{suffix}` (protocol §5).

Building a subject checks every token, so that no id can widen or break it; `parse` returns the tokens.
"""

from dataclasses import dataclass
from typing import Literal

from turnstile.schema.access import Caller
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentId, ChannelId, ProjectId, ToolCallId, token

VERSION = "v1r4"
CMD_STREAM = "cg_cmd_v1r4"
ASK_STREAM = "cg_ask_v1r4"
"""The commands of clients and tools to bridges, apart from the kernel's own."""
EVT_STREAM = "cg_evt_v1r4"
STR_STREAM = "cg_str_v1r4"
EVT_SUBJECTS = f"cg.{VERSION}.*.*.evt.>"
STR_SUBJECTS = f"cg.{VERSION}.*.*.str.>"
BRIDGE_COMMANDS = f"cg.{VERSION}.*.*.cmd.sys.bridge.*"
BRIDGE_REQUESTS = f"cg.{VERSION}.*.*.req.sys.bridge.>"
UI_ACTIONS = f"cg.{VERSION}.*.*.cmd.sys.ui.action"
PMO_COMMANDS = f"cg.{VERSION}.*.*.cmd.sys.pmo.internal.*"
CMD_SUBJECTS = tuple(f"cg.{VERSION}.*.*.cmd.{rest}.>" for rest in ("agent", "tool", "sys.pmo"))
ASK_SUBJECTS = (BRIDGE_COMMANDS, UI_ACTIONS)
TASK_EVENTS = f"cg.{VERSION}.*.*.evt.agent.*.task"

MODEL_QUEUES = f"cg.{VERSION}._workers._workers.sig.sys.model.queue"
"""What workers tell each other of queues at models: on core NATS, of no project, and in no stream."""

_PROBE = "_probe"

AgentEvent = Literal["state", "step", "task", "inbox_progress", "interrupt", "steer"]
"""The last token of an agent's events."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A parsed subject; `rest` are the tokens after the category, at least one."""

    project_id: ProjectId
    channel_id: ChannelId
    category: str
    rest: tuple[str, ...]


def parse(subject: str) -> Subject:
    """Parse a subject; raises `BadRequest` if it is none of this protocol."""
    tokens = subject.split(".")
    if len(tokens) < 6 or tokens[0] != "cg" or tokens[1] != VERSION:
        raise BadRequest(f"not a cg.{VERSION} subject: {subject[:120]!r}")
    for position, part in enumerate(tokens):
        token(part, f"subject token {position + 1}")
    return Subject(ProjectId(tokens[2]), ChannelId(tokens[3]), tokens[4], tuple(tokens[5:]))


def _build(project: ProjectId, channel: ChannelId, *rest: str) -> str:
    parts = (token(project, "project_id"), token(channel, "channel_id"), *rest)
    return ".".join(("cg", VERSION, *parts))


def project_filter(project: ProjectId) -> str:
    """Every subject of a project."""
    return f"cg.{VERSION}.{token(project, 'project_id')}.>"


def wakeup(project: ProjectId, channel: ChannelId, worker_target: str) -> str:
    """The doorbell of an agent's worker target."""
    return _build(project, channel, "cmd", "agent", token(worker_target, "worker_target"), "wakeup")


def wakeup_filter(worker_target: str) -> str:
    """The filter of the consumer of one target's doorbells, of all projects."""
    return f"cg.{VERSION}.*.*.cmd.agent.{token(worker_target, 'worker_target')}.wakeup"


def channel_filter(project: ProjectId, channel: ChannelId, category: Literal["evt", "str"]) -> str:
    """All events, or all streamed text, of one channel."""
    return _build(project, channel, category, ">")


def events_filter(project: ProjectId, channel: ChannelId | None, agent: AgentId | None = None) -> str:
    """All events of a project, of one channel or one agent if that is given."""
    within = "*" if channel is None else token(channel, "channel_id")
    of = ">" if agent is None else f"agent.{token(agent, 'agent_id')}.>"
    return f"cg.{VERSION}.{token(project, 'project_id')}.{within}.evt.{of}"


def agent_event(project: ProjectId, channel: ChannelId, agent: AgentId, suffix: AgentEvent) -> str:
    """An event of an agent: `evt.agent.{agent_id}.{suffix}`."""
    return _build(project, channel, "evt", "agent", token(agent, "agent_id"), suffix)


def task_events_filter(project: ProjectId, channel: ChannelId) -> str:
    """The `task` events of all agents of a channel."""
    return _build(project, channel, "evt", "agent", "*", "task")


def agent_events_filter(project: ProjectId, channel: ChannelId, agent: AgentId) -> str:
    """All events of one agent."""
    return _build(project, channel, "evt", "agent", token(agent, "agent_id"), "*")


def agent_chunk(project: ProjectId, channel: ChannelId, agent: AgentId) -> str:
    """Streamed text of an agent, on core NATS: `str.agent.{agent_id}.chunk`."""
    return _build(project, channel, "str", "agent", token(agent, "agent_id"), "chunk")


def bridge_request(project: ProjectId, channel: ChannelId, verb: str, caller: Caller | None = None) -> str:
    """A bridge verb over request/reply; an operator's verb has two tokens (`thread.describe`).

    The caller may follow, `req.sys.bridge.{verb}.{principal}`, so that NATS permissions fix who is named.
    """
    named = () if caller is None else (Caller.read(caller.tokens.split(".")).tokens,)
    return _build(project, channel, "req", "sys", "bridge", *(token(part, "verb") for part in verb.split(".")), *named)


def bridge_command(project: ProjectId, channel: ChannelId, verb: str) -> str:
    """A bridge verb as a durable command."""
    return _build(project, channel, "cmd", "sys", "bridge", token(verb, "verb"))


def bridge_ack(project: ProjectId, channel: ChannelId, verb: str) -> str:
    """The answer to a durable command: `evt.sys.bridge.{verb}_ack`."""
    return _build(project, channel, "evt", "sys", "bridge", f"{token(verb, 'verb')}_ack")


def ui_action(project: ProjectId, channel: ChannelId) -> str:
    """A UI action: `cmd.sys.ui.action`."""
    return _build(project, channel, "cmd", "sys", "ui", "action")


def action_ack(project: ProjectId, channel: ChannelId) -> str:
    """The acks of UI actions: `evt.sys.ui.action_ack`."""
    return _build(project, channel, "evt", "sys", "ui", "action_ack")


def pump_reply(project: ProjectId, channel: ChannelId) -> str:
    """The answers of the message pump: `evt.sys.pump.reply`."""
    return _build(project, channel, "evt", "sys", "pump", "reply")


def stream_probes(probe: str) -> dict[str, str]:
    """By stream, a subject of one probe that no consumer reads: its project and target do not exist."""
    project, channel = ProjectId(_PROBE), ChannelId(token(probe, "probe"))
    return {CMD_STREAM: wakeup(project, channel, _PROBE), EVT_STREAM: probe_event(project, channel)}


def probe_event(project: ProjectId, channel: ChannelId) -> str:
    """The message of a probe in the event stream: `evt.sys.probe`."""
    return _build(project, channel, "evt", "sys", "probe")


def tool_target(target: str, suffix: str) -> str:
    """`target_subject` of a tool's row: the subject of its commands, with placeholders for project and channel."""
    return f"cg.{VERSION}.{{project_id}}.{{channel_id}}.{_tool_command(target, suffix)}"


def pmo_target(tool: str) -> str:
    """`target_subject` of a delegating tool's row: `cmd.sys.pmo.internal.{tool}`."""
    return f"cg.{VERSION}.{{project_id}}.{{channel_id}}.cmd.sys.pmo.internal.{token(tool, 'tool_name')}"


def tool_commands_filter(project: ProjectId | None, target: str, suffix: str) -> str:
    """The commands of one tool, of one project or of all."""
    named = "*" if project is None else token(project, "project_id")
    return f"cg.{VERSION}.{named}.*.{_tool_command(target, suffix)}"


def _tool_command(target: str, suffix: str) -> str:
    return f"cmd.tool.{token(target, 'target')}.{token(suffix, 'suffix')}"


def tool_presence(project: ProjectId, channel: ChannelId, target: str, suffix: str, call: ToolCallId) -> str:
    """Requests between replicas of a tool about a running call: `req.tool.{target}.{suffix}.{tool_call_id}`."""
    rest = (
        token(target, "target"),
        *(token(part, "suffix") for part in suffix.split(".")),
        token(call, "tool_call_id"),
    )
    return _build(project, channel, "req", "tool", *rest)
