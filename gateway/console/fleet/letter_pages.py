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
from turnstile.ledger.access.pages import PageCursor
from turnstile.schema.base import Strict

LETTERS = f"{CONSOLE}/letters"
_PAGE = 50
_REASONS: Final[Mapping[str, str]] = {
    "protocol_violation": "The message named no turn, a turn of another agent, or a card that may not answer the call.",
    "resume_retry_exhausted": "The card that the message named never appeared, so its call failed.",
}
_WAYS: Final[Mapping[str, str]] = {
    "unknown_call": "The project has no such call: the sender used a wrong id, or retention removed its turn.",
    "not_your_call": "The headers of the report do not match the turn, agent or depth of the call: correct the sender.",
    "not_sent": "The call still waits for a person or for other turns: decide, or let them end.",
    "unknown_card": "The report named a card that does not exist: store the card first, or report the result inline.",
    "not_its_card": "The card may not answer the call: it must be a tool.result for it, written by a service.",
    "result_too_large": "An inline result is limited to 512 KiB: store a card, and report its id.",
    "bad_request": "The message does not follow the protocol: correct the sender, then send the message again.",
}
_OTHERWISE: Final = "Correct what the reason names, then send the message again."


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
    pool, principal, query = visit.console.pool, visit.principal, visit.query
    project, channel, place = principal.project_id, principal.channel_id, place_of(query.cursor)
    letters = await pool.run(
        lambda conn: list_dead_letters(conn, project, channel=channel, before=place, row_limit=_PAGE + 1)
    )
    refusals: list[Rejection] = []
    if channel is None:
        refusals = await pool.run(lambda conn: list_rejections(conn, project, before=query.before, row_limit=_PAGE + 1))
    page, refused = letters[:_PAGE], refusals[:_PAGE]
    last = page[-1] if len(letters) > _PAGE else None
    return render(
        visit,
        "fleet/letters.html",
        letters=[
            (letter, _REASONS.get(letter.reason, letter.reason), way_back(letter), _key(letter)) for letter in page
        ],
        rejections=[(rejection, _WAYS.get(rejection.error_code, _OTHERWISE)) for rejection in refused],
        cursor=None if last is None else cursor_of(PageCursor(last.created_at, last.inbox_id)),
        before=refused[-1].rejection_id if len(refusals) > _PAGE else None,
        whole=channel is None,
    )


def _key(letter: DeadLetter) -> str:
    """The name of the request that runs its turn again: however often it is asked for, it is one."""
    return f"letter-{hashlib.sha256(letter.inbox_id.encode()).hexdigest()[:32]}"


def way_back(letter: DeadLetter) -> str:
    """What to do about it, in words."""
    if not letter.has_turn:
        return "The message names no turn of this project: its sender must send the request again."
    if letter.outcome is None:
        if letter.wait_status == "waiting":
            return "The call waits until its deadline. Stop the turn, then run it again from this step."
        return "The turn continues."
    if letter.repeatable:
        return "The turn is over and can be run again."
    return "The turn is over. A UI action is not repeated: perform it again."
