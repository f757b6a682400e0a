"""`/v1/turns`: create, get, list, stop, rerun and tree (protocol §14.1).

Creating, stopping and running again are the bridge's verbs. Reading is the ledger's, within the token's project and
channel: what belongs to another is answered like what does not exist.
"""

import asyncio
import contextlib
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.datastructures import Headers

from turnstile.gateway.asking import Asking
from turnstile.gateway.events.feeds import Feeds
from turnstile.gateway.events.stream import attend
from turnstile.gateway.http.bearers import Access
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.outputs import output_of
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.ledger.access.pages import PageCursor, page_turns
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.tree_views import tree
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema import verbs
from turnstile.schema.access import Principal
from turnstile.schema.amounts import amount
from turnstile.schema.api import (
    Output,
    StopAnswer,
    TreeQuery,
    Turn,
    TurnCreate,
    TurnPage,
    TurnRerun,
    TurnsQuery,
    TurnSteer,
    TurnStop,
    TurnTree,
)
from turnstile.schema.api import TurnSummary as Summary
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Limited, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ConversationId
from turnstile.schema.people.steers import SteerReply
from turnstile.schema.states import ReplyStatus
from turnstile.schema.verbs import LONGEST_WAIT
from turnstile.schema.wire.descriptions import TurnView
from turnstile.schema.wire.inbox import EnqueueReply, RerunReply, StopReply

_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,6})(?=$|[,;\s])")
_KEY_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Turns:
    """The handlers, over one ledger and one bridge."""

    pool: Pool
    asking: Asking
    feeds: Feeds
    access: Access
    closing: asyncio.Event
    """Set when the gateway stops."""

    async def create(self, call: Call[object, TurnCreate]) -> Answer:
        """Enqueue a turn; with `Prefer: wait=SECONDS` answer when it is over, or then."""
        request, principal = call.body, call.principal
        channel = self.asking.channel(principal, request.channel_id)
        payload: JsonObject = request.model_dump(mode="json", exclude_unset=True, exclude={"channel_id"})
        payload = {name: value for name, value in payload.items() if value is not None}
        if (key := key_in(call.headers)) is not None:
            payload["correlation_id"] = key
        reply = await self.asking.ask(principal, channel, verbs.ENQUEUE, payload, call.headers)
        return await self._made(call, reply, channel)

    async def rerun(self, call: Call[object, TurnRerun]) -> Answer:
        """Run a turn again from one of its steps; answers the new turn as `create` does."""
        view = await self.described(call.principal, AgentTurnId(call.path["turn_id"]))
        reply = await self.rerun_turn(call.principal, view, call.body, key_in(call.headers), call.headers)
        return await self._made(call, reply, view.channel_id)

    async def rerun_turn(
        self, principal: Principal, view: TurnView, request: TurnRerun, key: str | None, headers: Headers
    ) -> RerunReply:
        """Ask the bridge to run a turn again; the same `key` is the same new turn."""
        payload: JsonObject = request.model_dump(mode="json", exclude_unset=True)
        payload = {name: value for name, value in payload.items() if value is not None}
        payload["agent_turn_id"] = view.agent_turn_id
        if key is not None:
            payload["correlation_id"] = key
        return await self.asking.ask(principal, view.channel_id, verbs.RERUN, payload, headers)

    async def made(self, principal: Principal, reply: EnqueueReply, channel: ChannelId) -> TurnView:
        """The turn of an accepted request: a new one as the reply has it, an earlier one as it is now."""
        if (turn_id := reply.agent_turn_id or reply.steered_turn_id) is None:
            raise Refused("internal_error", "the bridge accepted the request and named no turn")
        if reply.duplicate or reply.agent_turn_id is None or reply.created_at is None:
            return await self.described(principal, turn_id)
        return TurnView.new(reply, principal.project_id, channel)

    async def _made(self, call: Call[Any, Any], reply: EnqueueReply, channel: ChannelId) -> Answer:
        """The turn of an accepted request; once it is over, if that is waited for."""
        wait = wait_in(call.headers)
        turn, waited = await self._waited(call, await self.made(call.principal, reply, channel), wait)
        answer = Turn.model_validate(
            {
                **turn.model_dump(),
                "output": await self._output(turn),
                "duplicate": reply.duplicate,
                "steered": reply.status is ReplyStatus.STEERED,
                "steer_inbox_id": reply.inbox_id if reply.status is ReplyStatus.STEERED else None,
                "stopped": reply.stopped,
            }
        )
        headers = {"location": f"/v1/turns/{turn.agent_turn_id}"}
        if waited:
            headers["preference-applied"] = f"wait={amount(wait)}"
        return Answer(answer, 201 if turn.ended_at is not None else 202, headers)

    async def get(self, call: Call[object, object]) -> Answer:
        """A turn with its output."""
        view = await self.described(call.principal, AgentTurnId(call.path["turn_id"]))
        view, _ = await self._waited(call, view, wait_in(call.headers))
        return Answer(Turn.model_validate({**view.model_dump(), "output": await self._output(view)}))

    async def list(self, call: Call[TurnsQuery, object]) -> Answer:
        """A page of turns."""
        principal, query = call.principal, call.query
        channel = seen_channel(principal, query.channel_id)
        summaries = await self.pool.run(
            lambda conn: page_turns(
                conn,
                principal.project_id,
                channel=channel,
                agent=None if query.agent_id is None else AgentId(query.agent_id),
                conversation=None if query.conversation_id is None else ConversationId(query.conversation_id),
                end_user=query.end_user,
                before=place_of(query.cursor),
                row_limit=query.limit + 1,
            )
        )
        page: list[Summary] = summaries[: query.limit]
        after = (
            cursor_of(PageCursor(page[-1].created_at, page[-1].agent_turn_id)) if len(summaries) > len(page) else None
        )
        return Answer(TurnPage(turns=page, next=after))

    async def stop(self, call: Call[object, TurnStop]) -> Answer:
        """Stop a turn and those below it that are waited for."""
        principal, request = call.principal, call.body
        view = await self.described(principal, AgentTurnId(call.path["turn_id"]))
        reply = await self.stop_turn(principal, view, request, call.headers)
        return Answer(StopAnswer.model_validate(reply.model_dump()), 202)

    async def stop_turn(self, principal: Principal, view: TurnView, request: TurnStop, headers: Headers) -> StopReply:
        """Ask the bridge for a stop; its reason names the token."""
        payload: JsonObject = {
            "agent_turn_id": view.agent_turn_id,
            "reason": f"{request.reason or 'stopped'} ({principal.sender})",
        }
        if request.cascade != "waited":
            payload["cascade"] = request.cascade
        return await self.asking.ask(principal, view.channel_id, verbs.STOP, payload, headers)

    async def abandon(self, principal: Principal, view: TurnView) -> None:
        """Stop a turn whose client went away, if it can be stopped: nobody waits for its result."""
        with contextlib.suppress(TurnstileError):
            await self.stop_turn(principal, view, TurnStop(reason="the client disconnected"), Headers())

    async def steer_turn(
        self, principal: Principal, view: TurnView, request: TurnSteer, key: str | None, headers: Headers
    ) -> SteerReply:
        """Ask the bridge for a steer; the same `key` is the same one."""
        payload: JsonObject = {**request.model_dump(mode="json"), "agent_turn_id": view.agent_turn_id}
        if key is not None:
            payload["correlation_id"] = key
        return await self.asking.ask(principal, view.channel_id, verbs.STEER, payload, headers)

    async def tree(self, call: Call[TreeQuery, object]) -> Answer:
        """The tree that a turn is in, as far as the token may see it."""
        principal, query = call.principal, call.query
        view = await self.described(principal, AgentTurnId(call.path["turn_id"]))
        nodes = await self.pool.run(
            lambda conn: tree(
                conn,
                principal.project_id,
                view.agent_turn_id,
                channel=principal.channel_id,
                after=None if query.cursor is None else AgentTurnId(query.cursor),
                row_limit=query.limit + 1,
            )
        )
        page = nodes[: query.limit]
        return Answer(TurnTree(turns=page, next=page[-1].agent_turn_id if len(nodes) > len(page) else None))

    async def lookup(self, call: Call[Any, Any]) -> tuple[ChannelId, JsonObject]:
        """The channel of the turn that the path names, and the turn; raises as `described`."""
        view = await self.described(call.principal, AgentTurnId(call.path["turn_id"]))
        return view.channel_id, {"agent_turn_id": view.agent_turn_id}

    async def described(self, principal: Principal, turn: AgentTurnId) -> TurnView:
        """A turn that the token may see; raises `Refused` (unknown_turn)."""
        view = await self.pool.run(lambda conn: describe_turn(conn, principal.project_id, turn))
        if view is None or not principal.sees(view.channel_id):
            raise Refused("unknown_turn", "the project has no such turn")
        return view

    async def _waited(self, call: Call[Any, Any], view: TurnView, seconds: float) -> tuple[TurnView, bool]:
        """The turn once it is over or after so many seconds, and whether that was waited for.

        Nothing is waited for by a token that has all the open streams it may have, by a client that goes away, or when
        the gateway stops: all these get the turn as it is.
        """
        if not seconds or view.ended_at is not None:
            return view, seconds > 0
        try:
            with self.access.streaming(call.principal):
                waiting = asyncio.create_task(self._over(view, seconds))
                still = partial(self.access.still, call.secret)
                await attend(waiting, call.request.receive, self.closing, holds=still)
        except Limited:
            return view, False
        over = None if waiting.cancelled() else waiting.result()
        return over or await self.described(call.principal, view.agent_turn_id), True

    async def _over(self, view: TurnView, seconds: float) -> TurnView | None:
        """The turn once it is over; None if that takes longer, or is not known now."""
        with contextlib.suppress(TimeoutError, ServerUnavailable):
            async with asyncio.timeout(seconds):
                return await self.feeds.until_over(view)

    async def _output(self, view: TurnView) -> Output | None:
        card_id = view.deliverable_card_id
        return None if card_id is None else await output_of(self.pool, view, card_id)


def seen_channel(principal: Principal, channel: str | None) -> ChannelId | None:
    """The channel to list; raises `Refused` (forbidden) where the token is for another one."""
    if channel is not None and not principal.sees(channel):
        raise Refused("forbidden", "the token is for another channel")
    return principal.channel_id if channel is None else ChannelId(channel)


def key_in(headers: Headers) -> str | None:
    """The `Idempotency-Key`, with or without quotes; raises `BadRequest` for one that is none."""
    keys = headers.getlist("idempotency-key")
    if not keys:
        return None
    key = keys[0].strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if len(keys) > 1 or not 0 < len(key) <= _KEY_LENGTH or not key.isascii() or not key.isprintable():
        raise BadRequest(f"Idempotency-Key must be one value of 1 to {_KEY_LENGTH} ASCII characters")
    return key


def wait_in(headers: Headers) -> float:
    """The seconds of `Prefer: wait=SECONDS`, at most `LONGEST_WAIT`; 0 without it."""
    match = _WAIT.search(", ".join(headers.getlist("prefer")).lower())
    return min(float(match[1]), LONGEST_WAIT) if match else 0.0
