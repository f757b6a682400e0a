"""Cursors of pages: a place in a list, as `next` names it and `cursor` takes it back."""

import base64
import binascii
from datetime import MAXYEAR, MINYEAR, datetime

from turnstile.ledger.access.pages import PageCursor
from turnstile.schema.errors import BadRequest


def is_moment(moment: datetime) -> bool:
    """Whether this is a moment that every zone has; at the ends of the calendar there are some that UTC has not."""
    return moment.tzinfo is not None and MINYEAR < moment.year < MAXYEAR


def cursor_of(place: PageCursor) -> str:
    """A place in a page as a cursor."""
    return base64.urlsafe_b64encode(f"{place.at.isoformat()}|{place.id}".encode()).decode().rstrip("=")


def place_of(cursor: str | None) -> PageCursor | None:
    """The place that a cursor names; raises `BadRequest` for one that no page had."""
    if cursor is None:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        at, separator, name = text.partition("|")
        moment = datetime.fromisoformat(at)
    except (ValueError, binascii.Error):
        raise BadRequest("cursor: unknown; use the cursor of an earlier page") from None
    if not separator or not is_moment(moment) or not name.isascii() or not name.isprintable():
        raise BadRequest("cursor: unknown; use the cursor of an earlier page")
    return PageCursor(moment, name)
