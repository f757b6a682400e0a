"""Dead letters and rejections: what was given up or refused, why, and the way back."""

import hashlib
from collections.abc import Mapping
from typing import Final

from pydantic import Field
from starlette.responses import Response

from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import render
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.ledger.access.dead_letters import DeadLetter, Rejection, list_dead_letters, list_rejections
from turnstile.ledger.access.pages import Place
from turnstile.schema.base import Strict

LETTERS = f"{CONSOLE}/letters"
_PAGE = 50
_REASONS: Final[Mapping[str, str]] = {
    "protocol_violation": "It broke the protocol: it named no turn, another agent's, or a card that may not answer it.",
    "resume_retry_exhausted": "The card that it named never appeared; its call failed instead.",
}
_WAYS: Final[Mapping[str, str]] = {
    "unknown_call": "The project has no such call: the sender used a wrong id, or its turn was pruned.",
    "not_your_call": "The report's headers name another turn, agent or depth than the call's: mend the sender.",
    "not_sent": "The call waits for a person or for children first: decide, or let them end.",
    "unknown_card": "The report named a card that is not there: store the card first, or report the result inline.",
    "not_its_card": "The card may not answer the call: it must be a tool.result for it, written by a service.",
    "result_too_large": "An inline result is limited to 512 KiB: store a card, and report its id.",
    "bad_request": "The message is not as the protocol says: mend the sender, then let it send again.",
}
_OTHERWISE: Final = "Mend what the reason names, then let the sender send again."


class LettersQuery(Strict):
    """Where the two lists go on."""

    cursor: str | None = Field(default=None, min_length=1, max_length=512)
    """Dead letters before this place."""
    before: int | None = Field(default=None, ge=1, le=2**62)
    """Rejections before this one."""


def pages(_: Console) -> tuple[Page, ...]:
    """The page."""
    return (Page(name="letters", path=LETTERS, handler=show_letters, query=LettersQuery),)


async def show_letters(visit: Visit[LettersQuery, NoForm]) -> Response:
    """A page of each. A refusal names no channel, so a token of one channel sees none."""
    pool, principal, wanted = visit.console.pool, visit.principal, visit.query
    project, channel, place = principal.project_id, principal.channel_id, place_of(wanted.cursor)
    letters = await pool.run(
        lambda conn: list_dead_letters(conn, project, channel=channel, before=place, row_limit=_PAGE + 1)
    )
    refusals: list[Rejection] = []
    if channel is None:
        refusals = await pool.run(
            lambda conn: list_rejections(conn, project, before=wanted.before, row_limit=_PAGE + 1)
        )
    shown, told = letters[:_PAGE], refusals[:_PAGE]
    last = shown[-1] if len(letters) > _PAGE else None
    return render(
        visit,
        "fleet/letters.html",
        letters=[(each, _REASONS.get(each.reason, each.reason), way_back(each), _key(each)) for each in shown],
        rejections=[(each, _WAYS.get(each.error_code, _OTHERWISE)) for each in told],
        cursor=None if last is None else cursor_of(Place(last.created_at, last.inbox_id)),
        before=told[-1].rejection_id if len(refusals) > _PAGE else None,
        whole=channel is None,
    )


def _key(letter: DeadLetter) -> str:
    """The name of the request that runs its turn again: however often it is asked for, it is one."""
    return f"letter-{hashlib.sha256(letter.inbox_id.encode()).hexdigest()[:32]}"


def way_back(letter: DeadLetter) -> str:
    """What to do about it, in words."""
    if not letter.has_turn:
        return "It names no turn of this project: let its sender ask again."
    if letter.outcome is None:
        if letter.wait_status == "waiting":
            return "Its call waits until its deadline. Stop the turn, then run it again from this step."
        return "Its turn goes on."
    if letter.repeatable:
        return "Its turn is over, and can be run again."
    return "Its turn is over. Press the button again: what a user did is not repeated."
