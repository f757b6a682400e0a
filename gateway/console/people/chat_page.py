"""One conversation as a chat: what was said, what is said while it is said, and saying more (protocol §14.1).

While a turn runs, what is typed steers it now or is asked next. The page reads a bounded number of turns and cards in
four statements, however long the conversation is; the text of a running turn comes as the frames of `/v1`'s stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlencode

from pydantic import Field
from starlette.responses import Response

from turnstile.gateway.console.page import Console, Page, Visit
from turnstile.gateway.console.people.chat_entries import ChatEntry, entries_of, running, turn_ids
from turnstile.gateway.console.people.conversations import LIST, OF_MEMORY, address_of, new_key
from turnstile.gateway.console.rendering import render, see_other
from turnstile.gateway.http.problems import Problem, problem_of
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.access.chats import list_chat_cards, list_chat_turns
from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.people.interrupt_views import list_interrupts
from turnstile.ledger.turns.views import find_conversations
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.api import TurnStop
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import BadRequest, Refused, TurnstileError
from turnstile.schema.ids import AgentId, AgentTurnId, ConversationId
from turnstile.schema.ledger_reads import ConversationLine
from turnstile.schema.people.interrupts import InterruptStatus

_TURNS = 20
_CARDS = 120
"""Of one turn, the last."""
_ASKED = 50


class ChatQuery(Strict):
    """Which conversation of this name, and which part of it."""

    channel_id: str | None = Field(default=None, max_length=128)
    cursor: str | None = Field(default=None, min_length=1, max_length=512)
    """Only the turns before this one."""


class SayForm(Strict):
    """Something to say."""

    text: str = ""
    how: Literal["send", "queue", "steer"] = "send"
    turn: str = Field(default="", max_length=128)
    """The turn that is steered."""
    key: str = Field(min_length=1, max_length=64)


class ChatStopForm(Strict):
    """Which turn to stop."""

    turn: str = Field(min_length=1, max_length=128)


@dataclass(frozen=True, slots=True)
class Shown:
    """A part of a conversation, and where the earlier part is."""

    entries: Sequence[ChatEntry]
    earlier: str | None

    @property
    def settled(self) -> list[ChatEntry]:
        """The turns that are over, and the one that runs."""
        now = self.now
        return [entry for entry in self.entries if not entry.is_live or entry is now]

    @property
    def now(self) -> ChatEntry | None:
        """The turn that runs, or is the next to."""
        return running(self.entries)

    @property
    def queued(self) -> list[ChatEntry]:
        """The turns that wait behind it."""
        return [entry for entry in self.entries if entry.is_live and entry is not self.now]


@dataclass(frozen=True, slots=True)
class ChatPages:
    """The handlers."""

    console: Console

    async def show(self, visit: Visit[ChatQuery, object]) -> Response:
        """The conversation."""
        return await self._page(visit, await self._found(visit, visit.query.channel_id), visit.query.cursor)

    async def say(self, visit: Visit[ChatQuery, SayForm]) -> Response:
        """Ask the next turn, or steer the running one."""
        line = await self._found(visit, visit.query.channel_id)
        try:
            notice = await self._said(visit, line, visit.form)
        except TurnstileError as error:
            return await self._page(visit, line, None, error=error, text=visit.form.text, key=visit.form.key)
        return see_other(f"{address_of(line)}#end", notice)

    async def stop(self, visit: Visit[ChatQuery, ChatStopForm]) -> Response:
        """Stop a turn of the conversation."""
        line = await self._found(visit, visit.query.channel_id)
        view = await self.console.turns.described(visit.principal, AgentTurnId(visit.form.turn))
        try:
            await self.console.turns.stop_turn(visit.principal, view, TurnStop(), visit.headers)
        except TurnstileError as error:
            return await self._page(visit, line, None, error=error)
        return see_other(f"{address_of(line)}#end", "stopped")

    async def _found(self, visit: Visit[Any, Any], requested_channel: str | None) -> ConversationLine:
        """The conversation of the address; raises `Refused`: unknown_conversation, ambiguous."""
        project, agent = visit.principal.project_id, AgentId(visit.path["agent_id"])
        conversation = visit.path["conversation_id"]
        name, channel = (
            ConversationId("" if conversation == OF_MEMORY else conversation),
            seen_channel(visit.principal, requested_channel),
        )
        lines = await self.console.pool.run(
            lambda conn: find_conversations(conn, project, name, agent, channel, row_limit=_ASKED)
        )
        if not lines:
            raise Refused(
                "unknown_conversation", f"the project has no such conversation: {LIST} lists its conversations"
            )
        if len(lines) > 1:
            lines = [line for line in lines if line.channel_id == self.console.default_channel]
        if not lines:
            raise Refused("ambiguous", f"several channels have a conversation of this name: choose one on {LIST}")
        return lines[0]

    async def _said(self, visit: Visit[Any, SayForm], line: ConversationLine, form: SayForm) -> str | None:
        if not form.text.strip():
            raise BadRequest("write something first")
        asking, principal = self.console.asking, visit.principal
        if form.how == "steer":
            turn = await self.console.turns.described(principal, AgentTurnId(form.turn))
            steer: JsonObject = {
                "agent_turn_id": turn.agent_turn_id,
                "text": form.text,
                "priority": "asap",
                "correlation_id": form.key,
            }
            await asking.ask(principal, turn.channel_id, verbs.STEER, steer, visit.headers)
            return "steered"
        request: JsonObject = {"agent_id": line.agent_id, "instruction": form.text, "correlation_id": form.key}
        if line.conversation_id:
            request["conversation_id"] = line.conversation_id
        await asking.ask(principal, line.channel_id, verbs.ENQUEUE, request, visit.headers)
        return "queued" if form.how == "queue" else None

    async def _shown(self, visit: Visit[Any, Any], line: ConversationLine, cursor: str | None) -> Shown:
        project, pool = visit.principal.project_id, self.console.pool
        turns = await pool.run(
            lambda conn: list_chat_turns(conn, project, line.name, before=place_of(cursor), row_limit=_TURNS + 1)
        )
        earlier = None
        if len(turns) > _TURNS:
            turns = turns[-_TURNS:]
            place = cursor_of(PageCursor(turns[0].created_at, turns[0].agent_turn_id))
            earlier = f"{address_of(line)}&{urlencode({'cursor': place})}"
        cards = await pool.run(lambda conn: list_chat_cards(conn, project, turn_ids(turns), row_limit=_CARDS))
        interrupts = await pool.run(
            lambda conn: list_interrupts(
                conn,
                project,
                channel=line.channel_id,
                agent=line.agent_id,
                status=InterruptStatus.OPEN,
                row_limit=_ASKED,
            )
        )
        return Shown(entries_of(turns, cards, interrupts, _CARDS), earlier)

    async def _page(
        self,
        visit: Visit[Any, Any],
        line: ConversationLine,
        cursor: str | None,
        *,
        error: TurnstileError | None = None,
        text: str = "",
        key: str = "",
    ) -> Response:
        view = await self._shown(visit, line, cursor)
        now = view.now
        is_own = now is not None and now.turn.requester == visit.principal.caller.name
        problem: Problem | None = None if error is None else problem_of(error)
        unsure = problem is not None and problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR  # it may have been asked
        where = address_of(line)
        path, _, query = where.partition("?")
        return render(
            visit,
            "people/chat.html",
            HTTPStatus.OK if problem is None else problem.status,
            line=line,
            shown=view,
            where=where,
            stop_address=f"{path}/stop?{query}",
            events_address=f"{path}/events?{query}&turns=1",
            is_last_part=cursor is None,
            may_steer=now is not None and not now.turn.action_tool and (is_own or visit.may(Right.OPERATE)),
            problem=problem,
            text=text,
            key=key if unsure else new_key(),
        )


def pages(console: Console) -> tuple[Page, ...]:
    """The pages of this area."""
    handlers = ChatPages(console)
    one = f"{LIST}/{{agent_id}}/{{conversation_id}}"
    return (
        Page(name="chat", path=one, handler=handlers.show, query=ChatQuery),
        Page(name="say", path=one, method="POST", right=Right.ASK, handler=handlers.say, query=ChatQuery, form=SayForm),
        Page(
            name="stop_chat",
            path=f"{one}/stop",
            method="POST",
            right=Right.ASK,
            handler=handlers.stop,
            query=ChatQuery,
            form=ChatStopForm,
        ),
    )
