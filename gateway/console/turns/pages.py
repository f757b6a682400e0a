"""The pages of turns, for the console's list of addresses, and what people do there (protocol §14).

To stop a turn, to steer it and to run it again are verbs of the bridge, so the ledger says which token it was. A form
that is sent twice is one request.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import Field, field_validator
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.page import Console, Page, Visit
from turnstile.gateway.console.rendering import refusal_page, see_other
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.console.turns.now import NowQuery, TurnListQuery, now_page, turns_page
from turnstile.gateway.console.turns.tree import TreePageQuery, tree_page
from turnstile.gateway.console.turns.turn_page import TurnQuery, card_page, turn_page
from turnstile.schema.access import Right
from turnstile.schema.api import TurnRerun, TurnSteer, TurnStop
from turnstile.schema.base import Strict
from turnstile.schema.errors import Refused, TurnstileError
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.states import SteerPriority

_KEY = r"^[A-Za-z0-9_-]{1,128}$"


class SteerForm(Strict):
    """What to say."""

    text: str = Field(min_length=1)
    priority: SteerPriority = Field(default=SteerPriority.ASAP)
    key: str = Field(pattern=_KEY)


class RerunForm(Strict):
    """From where, and with which model."""

    from_step: int | None = Field(default=None, ge=1, le=100_000)
    model: str | None = Field(default=None, max_length=256)
    key: str = Field(pattern=_KEY)

    @field_validator("from_step", "model", mode="before")
    @classmethod
    def _blank_is_none(cls, value: object) -> object:
        """A field that is left empty is not given."""
        return None if isinstance(value, str) and not value.strip() else value


async def stop(visit: Visit[Any, TurnStop]) -> Response:
    """Stop the turn and the turns below it that are waited for, or all below it."""

    async def done(turn: AgentTurnId) -> Response:
        view = await visit.console.turns.described(visit.principal, turn)
        await visit.console.turns.stop_turn(visit.principal, view, visit.form, visit.headers)
        return see_other(_page(turn), "stopped")

    return await _acted(visit, done)


async def steer(visit: Visit[Any, SteerForm]) -> Response:
    """Say something to the turn while it runs."""
    form = visit.form
    request = TurnSteer(text=form.text, priority=form.priority)

    async def done(turn: AgentTurnId) -> Response:
        view = await visit.console.turns.described(visit.principal, turn)
        await visit.console.turns.steer_turn(visit.principal, view, request, form.key, visit.headers)
        return see_other(_page(turn), "steered")

    return await _acted(visit, done)


async def rerun(visit: Visit[Any, RerunForm]) -> Response:
    """Run the turn again, by a new one; its page follows."""
    form = visit.form
    fields = {"from_step": form.from_step, "model": form.model}
    request = TurnRerun.model_validate({name: value for name, value in fields.items() if value is not None})

    async def done(turn: AgentTurnId) -> Response:
        view = await visit.console.turns.described(visit.principal, turn)
        reply = await visit.console.turns.rerun_turn(visit.principal, view, request, form.key, visit.headers)
        if reply.agent_turn_id is None:
            raise Refused("internal_error", "the bridge accepted the request and named no turn")
        return see_other(_page(reply.agent_turn_id), "again")

    return await _acted(visit, done)


async def _acted(visit: Visit[Any, Any], action: Callable[[AgentTurnId], Awaitable[Response]]) -> Response:
    """What an action answers; a refusal is a page that leads back to the turn."""
    turn = AgentTurnId(visit.path["turn_id"])
    try:
        return await action(turn)
    except TurnstileError as error:
        return refusal_page(visit, error, "/console" if error.code == "unknown_turn" else _page(turn))


def _page(turn: AgentTurnId) -> str:
    return f"/console/turns/{part(turn)}"


_TURN = f"{CONSOLE}/turns/{{turn_id}}"


def pages(_: Console) -> tuple[Page, ...]:
    """Reads, and what can be done with a turn."""
    return (
        Page(name="now", path=CONSOLE, handler=now_page, query=NowQuery),
        Page(name="turns", path=f"{CONSOLE}/turns", handler=turns_page, query=TurnListQuery),
        Page(name="turn", path=_TURN, handler=turn_page, query=TurnQuery),
        Page(name="turn_card", path=f"{_TURN}/cards/{{card_id}}", handler=card_page),
        Page(name="tree", path=f"{_TURN}/tree", handler=tree_page, query=TreePageQuery),
        Page(name="stop_turn", path=f"{_TURN}/stop", handler=stop, method="POST", right=Right.ASK, form=TurnStop),
        Page(name="steer_turn", path=f"{_TURN}/steer", handler=steer, method="POST", right=Right.ASK, form=SteerForm),
        Page(name="rerun_turn", path=f"{_TURN}/rerun", handler=rerun, method="POST", right=Right.ASK, form=RerunForm),
    )
