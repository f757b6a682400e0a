"""Conversations: those that were used last, all of them, and a new one with an agent or a profile (protocol §14.1)."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlencode

from pydantic import Field
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.page import Console, Page, Visit
from turnstile.gateway.console.rendering import render, see_other
from turnstile.gateway.http.problems import problem_of
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.access.addressees import list_addressees
from turnstile.ledger.access.chats import list_chats, list_recent_conversations
from turnstile.ledger.access.pages import PageCursor, page_conversations
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import BadRequest, Refused, TurnstileError
from turnstile.schema.ids import AgentId, box_id, uuid7
from turnstile.schema.ledger_reads import ConversationLine

LIST = "/console/conversations"
NEW = f"{LIST}/new"
OF_MEMORY = "~"
"""Stands in addresses for the conversation that a profile's memory keeps, whose id is empty."""
_TABS = (("Recently used", "used"), ("All, newest first", "begun"))
_PAGE = 50
_OFFERED = 500
"""Agents, and profiles, that a form offers."""


class ChatsQuery(Strict):
    """Which conversations."""

    order: Literal["used", "begun"] = "used"
    agent_id: str | None = Field(default=None, max_length=128)
    channel_id: str | None = Field(default=None, max_length=128)
    cursor: str | None = Field(default=None, min_length=1, max_length=512)


class NewChatQuery(Strict):
    """Whom to talk to."""

    agent: str = Field(default="", max_length=128)
    profile: str = Field(default="", max_length=128)


class NewChatForm(Strict):
    """A conversation's first words."""

    to: str = Field(default="", max_length=140)
    """`agent:NAME` or `profile:NAME`."""
    conversation: str = Field(default="", max_length=512)
    channel: str = Field(default="", max_length=128)
    text: str = ""
    key: str = Field(min_length=1, max_length=64)


@dataclass(frozen=True, slots=True)
class Chats:
    """The handlers."""

    console: Console

    async def list(self, visit: Visit[ChatsQuery, object]) -> Response:
        """A page of conversations."""
        query, project = visit.query, visit.principal.project_id
        channel = seen_channel(visit.principal, query.channel_id)
        agent = None if query.agent_id is None else AgentId(query.agent_id)
        older = None
        if query.order == "used":
            names = await self.console.pool.run(
                lambda conn: list_recent_conversations(conn, project, channel=channel, agent=agent, row_limit=_PAGE)
            )
        else:
            before = place_of(query.cursor)
            page = await self.console.pool.run(
                lambda conn: page_conversations(
                    conn,
                    project,
                    channel=channel,
                    agent=agent,
                    before=None if before is None else PageCursor(before.at, box_id(before.id, "cursor")),
                    row_limit=_PAGE + 1,
                )
            )
            names = [line.name for line in page[:_PAGE]]
            if len(page) > _PAGE:
                last = page[_PAGE - 1]
                parameters = query.model_dump(exclude_none=True)
                cursor = cursor_of(PageCursor(last.created_at, last.output_box_id))
                older = f"{LIST}?{urlencode(parameters | {'cursor': cursor})}"
        lines = await self.console.pool.run(lambda conn: list_chats(conn, project, names))
        return render(
            visit,
            "people/conversations.html",
            lines=[(line, address_of(line)) for line in lines],
            older=older,
            tabs=[(label, _list(order, query.agent_id), order == query.order) for label, order in _TABS],
            agent_id=query.agent_id,
            unfiltered=_list(query.order, None),
            new=NEW if query.agent_id is None else f"{NEW}?{urlencode({'agent': query.agent_id})}",
        )

    async def new(self, visit: Visit[NewChatQuery, object]) -> Response:
        """The form that begins a conversation."""
        chosen = visit.query
        to = f"agent:{chosen.agent}" if chosen.agent else f"profile:{chosen.profile}" if chosen.profile else ""
        form = NewChatForm(to=to, conversation=_name(), key=new_key())
        return await self._form(visit, form)

    async def begin(self, visit: Visit[object, NewChatForm]) -> Response:
        """Ask the first turn of a conversation."""
        form, asking, principal = visit.form, self.console.asking, visit.principal
        try:
            payload = _request(form)
            channel = asking.channel(principal, form.channel or None)
            reply = await asking.ask(principal, channel, verbs.ENQUEUE, payload, visit.headers)
        except TurnstileError as error:
            status = problem_of(error).status
            key = new_key() if status < HTTPStatus.INTERNAL_SERVER_ERROR else form.key  # it may have been asked
            return await self._form(visit, form.model_copy(update={"key": key}), error, status)
        if reply.agent_id is None or reply.conversation_id is None:
            raise Refused("internal_error", "the bridge accepted the request and named no conversation")
        return see_other(f"{address(reply.agent_id, reply.conversation_id, channel)}#end")

    async def _form(
        self,
        visit: Visit[Any, Any],
        form: NewChatForm,
        error: TurnstileError | None = None,
        status: int = HTTPStatus.OK,
    ) -> Response:
        project = visit.principal.project_id
        known = await self.console.pool.run(lambda conn: list_addressees(conn, project, row_limit=_OFFERED))
        named = [f"{'profile' if addressee.is_profile else 'agent'}:{addressee.name}" for addressee in known]
        if form.to and form.to not in named:
            named.append(form.to)  # the list is bounded; the bridge says whether there is one
        return render(
            visit,
            "people/new_chat.html",
            status,
            form=form,
            problem=None if error is None else problem_of(error),
            agents=[name for name in named if name.startswith("agent:")],
            profiles=[name for name in named if name.startswith("profile:")],
            channel=visit.principal.channel_id or self.console.default_channel,
        )


def address_of(line: ConversationLine) -> str:
    """The page of a conversation."""
    return address(line.agent_id, line.conversation_id, line.channel_id)


def address(agent: str, conversation: str, channel: str) -> str:
    """The page of a conversation, by its three names."""
    where = f"{LIST}/{part(agent)}/{part(conversation or OF_MEMORY)}"
    return f"{where}?{urlencode({'channel_id': channel})}"


def _list(order: str, agent: str | None) -> str:
    """The list of conversations in this order, of one agent or all."""
    return f"{LIST}?{urlencode({'order': order} if agent is None else {'order': order, 'agent_id': agent})}"


def new_key() -> str:
    """A name for a form's request, by which one that is sent twice is done once."""
    return f"console-{uuid7()}"


def _name() -> str:
    """A name for a new conversation."""
    return f"chat-{uuid7()[-12:]}"


def _request(form: NewChatForm) -> JsonObject:
    """The request of a conversation's first turn; raises `BadRequest`, which says what is missing."""
    kind, _, name = form.to.partition(":")
    if kind not in ("agent", "profile") or not name:
        raise BadRequest("choose an agent or a profile")
    if not form.text.strip():
        raise BadRequest("write what the agent should do")
    request: JsonObject = {
        "instruction": form.text,
        "conversation_id": form.conversation.strip() or _name(),
        "correlation_id": form.key,
    }
    return {("agent_id" if kind == "agent" else "profile_name"): name, **request}


def pages(console: Console) -> tuple[Page, ...]:
    """The pages of this area."""
    handlers = Chats(console)
    return (
        Page(name="conversations", path=LIST, handler=handlers.list, query=ChatsQuery),
        Page(name="new_chat", path=NEW, right=Right.ASK, handler=handlers.new, query=NewChatQuery),
        Page(name="begin_chat", path=NEW, method="POST", right=Right.ASK, handler=handlers.begin, form=NewChatForm),
    )
