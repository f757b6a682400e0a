"""Threads built by the ledger's own functions: messages are sent, begun and settled without handlers."""

from dataclasses import dataclass
from typing import Any

from tests.support.ledger.agents import CHANNEL, PROJECT, TARGET, rows
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.hops import await_turn, begin_message, settle_message
from turnstile.ledger.pump.thread_views import list_thread_messages, list_thread_replies
from turnstile.ledger.pump.threads import Send, Sent, ThreadLimits, look_at_thread, send_message
from turnstile.ledger.queries import Connection
from turnstile.rules.hop import BegunMessage, Effect, Forward, Iterate, Respond
from turnstile.schema.ids import AgentTurnId, BoxId, new_box_id, uuid7
from turnstile.schema.pump.threads import MessageId, ThreadAdvanced, ThreadRef, new_thread_id
from turnstile.schema.wire.descriptions import MessageLine, ReplyLine

LIMITS = ThreadLimits()
USER = "user.anna"


def new_ref(**fields: Any) -> ThreadRef:
    """A reference to a new thread of the usual project."""
    known = {"project_id": PROJECT, "channel_id": CHANNEL, "thread_id": new_thread_id(), "worker_target": TARGET}
    return ThreadRef.model_validate({**known, **fields})


def message(to: str = "a", thread: ThreadRef | None = None, **fields: Any) -> Send:
    """A message from outside with its ids, which may be sent several times; `thread` is the thread that it joins."""
    name = MessageId(uuid7())
    known: dict[str, Any] = {
        "thread": thread or new_ref(),
        "joins": thread is not None,
        "requester": USER,
        "to": to,
        "payload": f"<{to}/>",
        "context_headers": {},
        "message_id": name,
        "correlation_id": name,
        "request_digest": "digest",
    }
    return Send(**{**known, **fields})


async def sent_by(pool: Pool, send: Send, limits: ThreadLimits = LIMITS) -> Sent:
    """send_message."""
    return await pool.transact(lambda conn: send_message(conn, send, limits))


def forward(listener: str, **more: Any) -> Forward:
    """A message to a listener below."""
    return Forward(listener, f"<{listener}/>", **more)


AGAIN = Iterate("<again/>")
RESPONSE = Respond("<done/>")


@dataclass(frozen=True)
class Talk:
    """A thread, with the operations of those who work on it."""

    pool: Pool
    ref: ThreadRef
    first: MessageId
    limits: ThreadLimits = LIMITS

    async def join(self, to: str = "a", **fields: Any) -> MessageId:
        """Send another message from outside into the thread."""
        return (await sent_by(self.pool, message(to, self.ref, **fields), self.limits)).message_id

    async def begin(self, name: MessageId, run: str | None = None) -> BegunMessage | None:
        """begin_message, by a new run if none is given."""
        run = run or uuid7()
        return await self.pool.run(lambda conn: begin_message(conn, self.ref, name, run))

    async def begun(self, name: MessageId) -> BegunMessage:
        """Begin an open message; it must not be settled yet."""
        found = await self.begin(name)
        assert found is not None
        return found

    def settling(self, begun: BegunMessage, effect: Effect) -> Any:
        """settle_message as a transition."""

        async def settle(conn: Connection) -> ThreadAdvanced:
            return (await settle_message(conn, self.ref, begun, effect, self.limits)).thread

        return settle

    async def settle(self, begun: BegunMessage, effect: Effect) -> ThreadAdvanced:
        """settle_message."""
        return await self.pool.transact(self.settling(begun, effect))

    async def do(self, effect: Effect, name: MessageId | None = None) -> MessageId:
        """Begin and settle a message, by default the newest; returns the message that it made, or else the newest."""
        name = name or (await self.lines())[-1].message_id
        await self.settle(await self.begun(name), effect)
        lines = await self.lines()
        return next((line.message_id for line in lines if line.cause_id == name), lines[-1].message_id)

    async def wait(
        self, name: MessageId, seconds: float = 60, box: BoxId | None = None, turn: AgentTurnId | None = None
    ) -> AgentTurnId | None:
        """await_turn, by default for a turn that does not exist; None if the message was settled."""
        out, wanted = box or new_box_id(), turn or AgentTurnId(f"turn-of-{name}")
        waits = await self.pool.run(
            lambda conn: await_turn(conn, self.ref, name, wanted, out, deadline_seconds=seconds)
        )
        return wanted if waits else None

    async def look(self) -> ThreadAdvanced:
        """look_at_thread."""
        return await self.pool.run(lambda conn: look_at_thread(conn, self.ref))

    async def lines(self) -> list[MessageLine]:
        """All messages in order."""
        return await self.pool.run(lambda conn: list_thread_messages(conn, self.ref.thread_id, row_limit=1000))

    async def shape(self) -> list[str]:
        """One line for each message: sender, chain, kind, and effect or status."""
        return [
            f"{line.from_id} > {line.chain.removeprefix(f'{USER}.')} {line.kind} {line.effect or line.status}"
            + (" canceled" if line.effect and line.status == "canceled" else "")
            for line in await self.lines()
        ]

    async def answers(self) -> list[ReplyLine]:
        """The answers that were given, in order."""
        return await self.pool.run(lambda conn: list_thread_replies(conn, self.ref.thread_id, row_limit=1000))

    async def replies(self) -> dict[MessageId, str]:
        """The reason of each request's answer."""
        return {answer.request_id: answer.reason.value for answer in await self.answers()}

    async def row(self) -> dict[str, Any]:
        """The thread's row."""
        [found] = await rows(self.pool, "SELECT * FROM state.threads WHERE thread_id = $1", self.ref.thread_id)
        return found


async def talk(pool: Pool, to: str = "a", *, limits: ThreadLimits = LIMITS, **fields: Any) -> Talk:
    """A new thread with its first message."""
    sent = await sent_by(pool, message(to, **fields), limits)
    return Talk(pool, sent.thread, sent.message_id, limits)
