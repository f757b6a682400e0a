"""What handlers answer: a page, the way to another one after a change, or why it was not done."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response

from turnstile.gateway.console.formats import caller_name
from turnstile.gateway.console.page import Visit
from turnstile.gateway.console.templating import CONSOLE, Templates
from turnstile.gateway.http.problems import Problem, headers_of, problem_of
from turnstile.schema.errors import TurnstileError

SENTENCES: Final[Mapping[str, str]] = {
    "entered": "You are signed in.",
    "stopped": "The turn is being stopped.",
    "deleted": "The conversation is being deleted: its turns are stopped, and then nothing is left of it.",
    "again": "This turn is a rerun of the other one.",
    "steered": "The turn reads your message in its next step.",
    "queued": "Your message is queued: it becomes the next turn.",
    "approved": "Approved: the call is sent to its tool.",
    "edited": "Approved with your changes: the call is sent to its tool.",
    "rejected": "Rejected: the model reads the rejection.",
    "answered": "Answered: the model reads your answer.",
    "tool_changed": "The tool has changed in the meantime, so the call was not sent. The model reads the error.",
    "paused": "The agent is paused. No further turn starts; the others stay queued.",
    "resumed": "The agent is active again.",
    "retired": "The agent is retired. It accepts no further requests; queued turns still run.",
    "schedule_paused": "The schedule is paused: it fires no more until it is resumed.",
    "schedule_resumed": "The schedule fires from its next time on.",
    "triggered": "This is the schedule's turn.",
    "reported": "The call is answered. Its turn continues with your answer.",
    "raised": "The budget has been changed.",
    "limited": "The limit applies from now on.",
    "unlimited": "The limit has been removed.",
}


MOST_COUNTED: Final = 99
"""More open questions than this are shown as `99+`."""
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    # Not `no-referrer`: browsers would then say `Origin: null` with a form, as if another site had sent it.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""What all responses of the console have; the guard adds what all of the gateway's have."""
_LONGEST: Final = 2000
"""Of an address to go to."""
NAV: Final = (
    ("Now", CONSOLE, "n"),
    ("Approvals", f"{CONSOLE}/approvals", "a"),
    ("Conversations", f"{CONSOLE}/conversations", "c"),
    ("Agents", f"{CONSOLE}/agents", "g"),
    ("Calls", f"{CONSOLE}/calls", "w"),
    ("Costs", f"{CONSOLE}/costs", "m"),
    ("Health", f"{CONSOLE}/health", "h"),
)


def render(visit: Visit[Any, Any], template: str, /, status: int = 200, **context: object) -> Response:
    """A template as a page of this session.

    Beside `context` templates have `visit`, `principal`, `csrf`, `may("ask")`, `who(sender)`, `nav`, `current`,
    `notice` and `fragment`.
    """
    shared = {
        "visit": visit,
        "principal": visit.principal,
        "csrf": visit.csrf,
        "may": visit.may,
        "who": partial(caller_name, visit.labels),
        "nav": NAV,
        "current": _current(visit.request.url.path),
        "approvals": _counted(visit.open_approvals),
        "notice": SENTENCES.get(visit.notice, ""),
        "fragment": visit.fragment,
    }
    return _page(visit.console.templates.render(template, **shared, **context), status)


def bare(templates: Templates, template: str, status: int = 200, **context: object) -> Response:
    """A template as a page of nobody's session."""
    shared = {"visit": None, "notice": "", "fragment": False, "current": ""}
    return _page(templates.render(template, **shared, **context), status)


def _page(text: str, status: int) -> Response:
    """A half of a surrogate pair, which JSON can hold and UTF-8 cannot, is a question mark."""
    return HTMLResponse(text.encode("utf-8", "replace"), status, HEADERS)


def see_other(path: str, notice: str | None = None) -> Response:
    """The way to `path` after a change; the page there says the sentence of the code `told` once."""
    if notice is not None and notice not in SENTENCES:
        raise KeyError(notice)
    page, mark, place = path.partition("#")
    query = "" if notice is None else f"{'&' if '?' in page else '?'}{urlencode({'told': notice})}"
    return Response(status_code=303, headers={**HEADERS, "location": f"{page}{query}{mark}{place}"})


def refusal_page(visit: Visit[Any, Any], error: TurnstileError, back: str | None = None) -> Response:
    """A page that says why it was not done, what to do, and the way back: to where the browser came from."""
    problem, back = problem_of(error), _came_from(visit.headers) if back is None else back
    answer = render(visit, "refused.html", problem.status, problem=problem, back=back)
    return _also(answer, problem)


def problem_page(templates: Templates, problem: Problem) -> Response:
    """A problem as a page, where it is not known whose session it is."""
    return _also(bare(templates, "problem.html", problem.status, problem=problem), problem)


def _also(answer: Response, problem: Problem) -> Response:
    """With the headers of a problem, but for what makes it one of an API."""
    for name, value in headers_of(problem).items():
        if name == "retry-after":
            answer.headers[name] = value
    return answer


_ELSEWHERE: Final = {
    "profiles": "agents",
    "tools": "agents",
    "schedules": "agents",
    "letters": "calls",
    "budgets": "costs",
}
"""Pages that the navigation has under another one's entry."""


def _current(path: str) -> str:
    """The entry of the navigation that a page is under."""
    area = path.removeprefix(f"{CONSOLE}/").partition("/")[0]
    entry = CONSOLE if path == CONSOLE or area == "turns" else f"{CONSOLE}/{_ELSEWHERE.get(area, area)}"
    return entry if any(address == entry for _, address, _ in NAV) else ""


def own_page(address: object) -> str:
    """Where a browser wants to go next, if that is a page of the console; else the console's first."""
    if isinstance(address, str) and len(address) <= _LONGEST and address.isascii() and address.isprintable():
        try:
            parts = urlsplit(address)
        except ValueError:
            return CONSOLE
        within = parts.path == CONSOLE or parts.path.startswith(f"{CONSOLE}/")
        climbs = any(part in (".", "..") for part in unquote(parts.path).split("/"))
        if not parts.scheme and not parts.netloc and within and not climbs and "\\" not in address:
            return address
    return CONSOLE


def _came_from(headers: Headers) -> str:
    """The page of ours that a browser was on; else the console's first."""
    try:
        page = urlsplit(headers.get("referer", ""))
    except ValueError:
        return CONSOLE
    is_own = page.netloc.lower() == headers.get("host", "").lower()
    return own_page(f"{page.path}?{page.query}" if page.query else page.path) if is_own else CONSOLE


def _counted(count: int) -> str:
    return "" if not count else f"{MOST_COUNTED}+" if count > MOST_COUNTED else str(count)
