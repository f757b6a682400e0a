"""`deploy/nats/nats.conf`: what each role may do, and what it may not, each tried on a real server.

Who may ask a verb, its declaration says: every verb is tried by every role, on each of its subjects.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.roles.servers import USERS, GuardedNats
from turnstile.schema import verbs
from turnstile.schema.errors import ConfigError
from turnstile.schema.verbs import Party, Verb
from turnstile.transport.connection import NatsConnection, connect

EVT, CMD, ASK, TOOL = "cg_evt_v1r4", "cg_cmd_v1r4", "cg_ask_v1r4", "turnstile_tool_text_count@demo"
STR = "cg_str_v1r4"
GATEWAY_HEARS = ("sub cg.v1r4.*.*.evt.>", "sub cg.v1r4.*.*.str.>")
NOT_A_CLIENTS = ("decide",)
"""What the turns of a client ask people, others decide."""


REQUESTS_ONLY = ("describe",)
"""A durable verb that the roles ask by requests alone: who looks wants the answer now."""
NAMES = ("client", "alice", "operator.alice", "token.ab", "operator.token.ab")


def subjects_of(verb: Verb[Any, Any], *names: str) -> set[str]:
    """Each subject on which somebody of these names asks a verb, as the verb declares it."""
    request = f"req.sys.bridge.{verb.name}"
    plain = {request} if verb.caller != "must" else set[str]()
    named = {f"{request}.{name}" for name in names} if verb.caller != "none" else set[str]()
    command = {f"cmd.sys.bridge.{verb.name}"} if verb.durable and verb.name not in REQUESTS_ONLY else set[str]()
    return plain | named | command


def asked_by(user: str, verb: Verb[Any, Any]) -> set[str]:
    """The subjects on which a user may ask a verb."""
    by_client = Party.CLIENT in verb.callers
    match user:
        case "client" if by_client and verb.name not in NOT_A_CLIENTS:
            return subjects_of(verb, "client")
        case "operator" if by_client or Party.OPERATOR in verb.callers:
            return subjects_of(verb, "operator.alice")
        case "tool" if Party.TOOL in verb.callers:
            return subjects_of(verb)
        case "gateway" if verb.by_gateway or (verb.route is not None and verb.route.method != "GET"):
            request = f"req.sys.bridge.{verb.name}"
            return {request} if verb.caller == "none" else {f"{request}.{name}" for name in NAMES}
        case _:
            return set()


def asks(user: str) -> set[str]:
    """The subjects on which a user may ask verbs."""
    return set[str]().union(*(asked_by(user, verb) for verb in verbs.VERBS))


ALL = set[str]().union(*(subjects_of(verb, *NAMES) for verb in verbs.VERBS))
ALL.update(f"cmd.sys.bridge.{name}" for name in REQUESTS_ONLY)


def published(user: str, *, project: str = "demo") -> tuple[str, ...]:
    """Requests and commands that a user may publish."""
    return tuple(f"pub cg.v1r4.{project}.c.{subject}" for subject in sorted(asks(user)))


def refused(user: str, *, project: str = "demo") -> tuple[str, ...]:
    """Those that it may not."""
    return tuple(f"pub cg.v1r4.{project}.c.{subject}" for subject in sorted(ALL - asks(user)))


MAY: dict[str, tuple[str, ...]] = {
    "admin": (
        *(f"pub $JS.API.STREAM.{call}.{CMD}" for call in ("CREATE", "INFO", "UPDATE")),
        *(f"pub $JS.API.CONSUMER.{call}.{CMD}.turnstile_x" for call in ("INFO", "DELETE", "CREATE")),
        "pub $SRV.PING",
    ),
    "bridge": (
        *(f"pub cg.v1r4.p.c.{rest}" for rest in ("cmd.agent.t.wakeup", "cmd.tool.a.b", "cmd.tool.a.b.c")),
        *(f"pub cg.v1r4.p.c.{rest}" for rest in ("cmd.sys.bridge.stop", "evt.agent.a.task", "evt.sys.pump.reply")),
        "pub cg.v1r4.p.c.cmd.sys.pmo.internal.fork_join",
        "pub cg.v1r4.p.c.req.tool.text.count.call_1",
        f"pub $JS.API.CONSUMER.CREATE.{CMD}.turnstile_pmo.cg.v1r4.*.*.cmd.sys.pmo.internal.*",
        f"pub $JS.API.CONSUMER.CREATE.{CMD}.turnstile_wakeup_t.cg.v1r4.*.*.cmd.agent.t.wakeup",
        f"pub $JS.API.CONSUMER.CREATE.{ASK}.turnstile_bridge_verbs.cg.v1r4.*.*.cmd.sys.bridge.*",
        f"pub $JS.API.CONSUMER.CREATE.{ASK}.turnstile_ui_actions.cg.v1r4.*.*.cmd.sys.ui.action",
        f"pub $JS.API.CONSUMER.CREATE.{EVT}.turnstile_thread_turns.cg.v1r4.*.*.evt.agent.*.task",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{CMD}.turnstile_wakeup_t",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{ASK}.turnstile_bridge_verbs",
        f"pub $JS.API.STREAM.MSG.DELETE.{ASK}",
        f"pub $JS.ACK.{ASK}.turnstile_bridge_verbs.1.1.1.1.1",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{EVT}.turnstile_thread_turns",
        f"pub $JS.API.CONSUMER.DELETE.{EVT}.turnstile_past_turns",
        f"pub $JS.API.CONSUMER.CREATE.{EVT}.turnstile_past_turns.cg.v1r4.*.*.evt.agent.*.task",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{EVT}.turnstile_past_turns",
        f"pub $JS.ACK.{CMD}.turnstile_wakeup_t.1.1.1.1.1",
        f"pub $JS.ACK.{EVT}.turnstile_thread_turns.1.1.1.1.1",
        *(f"pub _INBOX_{user}.x" for user in ("client", "operator", "client_other")),
        "sub cg.v1r4.*.*.req.sys.bridge.> turnstile",
        "sub $SRV.PING",
    ),
    "worker": (
        *(f"pub cg.v1r4.p.c.{rest}" for rest in ("cmd.agent.t.wakeup", "cmd.tool.a.b", "cmd.sys.bridge.stop")),
        *(f"pub cg.v1r4.p.c.{rest}" for rest in ("evt.agent.a.task", "evt.sys.pump.reply", "str.agent.a.chunk")),
        "pub cg.v1r4.p.c.cmd.sys.pmo.internal.fork_join",
        *(f"pub _INBOX_{user}.x" for user in ("client", "operator", "client_other")),
        f"pub $JS.API.STREAM.INFO.{EVT}",
    ),
    "gateway": (
        *published("gateway", project="p"),
        f"pub $JS.API.CONSUMER.INFO.{CMD}.{TOOL}",
        *(f"pub $JS.API.{call}.{STR}" for call in ("STREAM.INFO", "STREAM.CREATE", "DIRECT.GET")),
        *GATEWAY_HEARS,
    ),
    "tool": (
        *published("tool"),
        f"pub $JS.API.CONSUMER.MSG.NEXT.{CMD}.{TOOL}",
        f"pub $JS.API.CONSUMER.INFO.{CMD}.{TOOL}",
        f"pub $JS.ACK.{CMD}.{TOOL}.1.1.1.1.1",
        "pub cg.v1r4.demo.c.req.tool.text.count.call_1",
        "sub cg.v1r4.demo.c.req.tool.text.count.call_1",
    ),
    "client": (
        *published("client"),
        "pub cg.v1r4.demo.c.cmd.sys.ui.action",
        "sub cg.v1r4.demo.*.evt.>",
        "sub cg.v1r4.demo.c.str.agent.a.chunk",
    ),
}
MAY["operator"] = (
    *published("operator"),
    *(action for action in MAY["client"] if action not in published("client")),
)
MAY["client_other"] = tuple(
    each.replace(".demo.", ".other.").replace(".client", ".client_other") for each in MAY["client"]
)

NOBODY = (  # but admin, where it is the JetStream API
    f"pub $JS.API.STREAM.DELETE.{CMD}",
    f"pub $JS.API.STREAM.PURGE.{EVT}",
    f"pub $JS.API.STREAM.UPDATE.{CMD}",
    "pub $JS.API.STREAM.CREATE.mine",
    f"pub $JS.API.STREAM.MSG.GET.{EVT}",
    *(f"pub $JS.API.STREAM.MSG.DELETE.{stream}" for stream in (EVT, CMD)),
    f"pub $JS.API.DIRECT.GET.{EVT}",
    f"pub $JS.API.CONSUMER.CREATE.{EVT}",
    f"pub $JS.API.CONSUMER.CREATE.{CMD}.mine",
    f"pub $JS.API.CONSUMER.CREATE.{EVT}.mine.cg.v1r4.demo.>",
    f"pub $JS.API.CONSUMER.DURABLE.CREATE.{EVT}.mine",
    f"pub $JS.API.CONSUMER.DELETE.{ASK}.turnstile_bridge_verbs",
    f"pub $JS.API.CONSUMER.NAMES.{CMD}",
    "pub $SYS.REQ.SERVER.PING",
    "pub anything",
    "sub >",
    "sub cg.>",
    "sub cg.v1r4.*.*.evt.>",
    "sub cg.v1r4.*.*.cmd.>",
    "sub $JS.>",
    "sub $SYS.>",
    "sub _INBOX.>",
    "sub *.>",
)
MAY_NOT: dict[str, tuple[str, ...]] = {
    "admin": (
        *(f"pub cg.v1r4.demo.c.{rest}" for rest in ("cmd.sys.bridge.enqueue", "req.sys.bridge.enqueue")),
        "pub cg.v1r4.demo.c.evt.agent.a.task",
    ),
    "bridge": (
        *(f"pub cg.v1r4.demo.c.{way}.sys.bridge.enqueue" for way in ("req", "cmd")),
        "pub cg.v1r4.demo.c.str.agent.a.chunk",
        "sub cg.v1r4.*.*.req.sys.bridge.>",
        "sub cg.v1r4.*.*.req.sys.bridge.> mine",
        f"pub $JS.API.CONSUMER.CREATE.{EVT}.turnstile_thread_turns.cg.v1r4.*.*.evt.>",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{EVT}.mine",
    ),
    "worker": (
        *(f"pub cg.v1r4.demo.c.{way}.sys.bridge.enqueue" for way in ("req", "cmd")),
        f"pub $JS.API.CONSUMER.MSG.NEXT.{CMD}.turnstile_wakeup_t",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{ASK}.turnstile_bridge_verbs",
        f"pub $JS.API.STREAM.MSG.DELETE.{ASK}",
        f"pub $JS.ACK.{ASK}.turnstile_bridge_verbs.1.1.1.1.1",
        f"pub $JS.ACK.{CMD}.turnstile_wakeup_t.1.1.1.1.1",
        "sub cg.v1r4.demo.c.req.sys.bridge.enqueue",
        "sub cg.v1r4.demo.c.req.sys.bridge.> turnstile",
        "sub cg.v1r4.demo.c.cmd.tool.text.count",
    ),
    "gateway": (
        *refused("gateway"),
        f"pub $JS.API.CONSUMER.MSG.NEXT.{CMD}.{TOOL}",
        *(f"pub cg.v1r4.demo.c.{rest}" for rest in ("evt.agent.a.task", "str.agent.a.chunk", "cmd.agent.t.wakeup")),
        f"pub $JS.API.STREAM.CREATE.{CMD}",
        f"pub $JS.API.STREAM.UPDATE.{STR}",
        f"pub $JS.API.STREAM.DELETE.{STR}",
        f"pub $JS.API.CONSUMER.CREATE.{STR}",
        "pub cg.v1r4.demo.c.cmd.tool.text.count",
        "sub cg.v1r4.demo.c.req.sys.bridge.enqueue",
        "sub cg.v1r4.demo.c.cmd.tool.text.count",
    ),
    "tool": (
        *refused("tool"),
        *published("tool", project="other"),
        "pub cg.v1r4.demo.c.cmd.sys.pmo.internal.fork_join",
        "pub cg.v1r4.demo.c.cmd.sys.bridge.delegate",
        "pub cg.v1r4.demo.c.evt.agent.a.task",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{CMD}.turnstile_tool_text_count@other",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{CMD}.turnstile_tool_web_fetch@demo",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{CMD}.turnstile_wakeup_t",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{ASK}.turnstile_bridge_verbs",
        f"pub $JS.API.STREAM.MSG.DELETE.{ASK}",
        f"pub $JS.ACK.{ASK}.turnstile_bridge_verbs.1.1.1.1.1",
        f"pub $JS.ACK.{CMD}.turnstile_tool_text_count@other.1.1.1.1.1",
        f"pub $JS.ACK.{CMD}.turnstile_wakeup_t.1.1.1.1.1",
        f"pub $JS.API.CONSUMER.CREATE.{CMD}.{TOOL}.cg.v1r4.demo.*.cmd.tool.text.count",
        "pub cg.v1r4.demo.c.req.tool.web.fetch.call_1",
        "sub cg.v1r4.other.c.req.tool.text.count.call_1",
        "sub cg.v1r4.demo.c.cmd.tool.text.count",
        "sub cg.v1r4.demo.*.evt.>",
    ),
    "client": (
        *refused("client"),
        *published("client", project="other"),
        "pub cg.v1r4.other.c.cmd.sys.ui.action",
        *(f"pub cg.v1r4.demo.c.{rest}" for rest in ("evt.agent.a.task", "str.agent.a.chunk", "cmd.agent.t.wakeup")),
        "pub cg.v1r4.demo.c.cmd.tool.text.count",
        "pub cg.v1r4.demo.c.cmd.sys.pmo.internal.fork_join",
        f"pub $JS.API.CONSUMER.MSG.NEXT.{CMD}.{TOOL}",
        f"pub $JS.API.STREAM.INFO.{EVT}",
        f"pub $JS.ACK.{CMD}.{TOOL}.1.1.1.1.1",
        "pub $JS.API.INFO",
        "pub $SRV.PING",
        "sub cg.v1r4.other.c.evt.>",
        "sub cg.v1r4.other.*.str.>",
        "sub cg.v1r4.demo.*.req.>",
        "sub cg.v1r4.demo.*.cmd.>",
        "sub cg.v1r4.demo.c.req.sys.bridge.> turnstile",
    ),
}
MAY_NOT["operator"] = tuple(each for each in MAY_NOT["client"] if each not in MAY["operator"])
MAY_NOT["operator"] += published("operator", project="other")
MAY_NOT["client_other"] = tuple(
    each.replace(".demo.", ".DEMO.").replace(".other.", ".demo.").replace(".DEMO.", ".other.")
    for each in MAY_NOT["client"]
)


@pytest.fixture(scope="module", params=USERS)
async def user(guarded: GuardedNats, request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, NatsConnection]]:
    """A role, logged in."""
    name: str = request.param
    conn = await connect(guarded.url_of(name), name=name)
    yield name, conn
    await conn.close()


async def allowed(conn: NatsConnection, action: str) -> bool:
    """Whether the server lets this user do it."""
    conn.violations.clear()
    verb, subject, *queue = action.split()
    async with AsyncExitStack() as stack:
        if verb == "pub":
            await conn.send(subject, b"")
        else:
            subscription = await conn.subscribe(subject, _ignore, queue="".join(queue))
            stack.push_async_callback(conn.unsubscribe, subscription)
        try:
            await conn.verify()
        except ConfigError:
            return False
    return True


async def _ignore(_: object) -> None:
    return


async def test_what_a_role_may(user: tuple[str, NatsConnection]) -> None:
    name, conn = user
    refused = [action for action in (*MAY[name], f"sub _INBOX_{name}.x") if not await allowed(conn, action)]
    assert refused == []


async def test_what_a_role_may_not(user: tuple[str, NatsConnection]) -> None:
    """Nobody hears another's inbox; into a client's only bridges and workers publish, copies of answers."""
    name, conn = user
    others = [u for u in USERS if u != name]
    wrong = [*MAY_NOT[name], *(f"sub _INBOX_{each}.>" for each in others)]
    unheard = [action for action in NOBODY if name != "gateway" or action not in GATEWAY_HEARS]
    wrong += [action for action in unheard if name != "admin" or not action.startswith("pub $JS.API.")]
    wrong += [action for each in others if (action := f"pub _INBOX_{each}.x") not in MAY[name]]
    assert [action for action in wrong if await allowed(conn, action)] == []
