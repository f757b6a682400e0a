"""Who a browser is: a cookie that holds a token, and what its forms must carry (protocol §14.5).

Nothing is kept here. Every gateway knows the session, and a token that is revoked ends it with its next request. The
cookie is for `/console` alone: `/v1` and `/openai` never read it. No script reads it, and no other site's page sends
it. Outside of this machine it travels over HTTPS only. Two gateways of one host each have a cookie of their own.
"""

import hmac
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Final
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from turnstile.gateway.console.templating import CONSOLE
from turnstile.schema.access import Secret, read_secret
from turnstile.schema.errors import Refused

COOKIE: Final = "turnstile_console"
SESSION_SECONDS: Final = 12 * 3600
CSRF: Final = "csrf"
"""The form field that a change must carry."""
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def cookie_name(headers: Headers) -> str:
    """The cookie of the gateway that is called: browsers separate cookies by host, and not by port."""
    try:
        port = _called(headers).port
    except ValueError:  # no port has this number
        port = None
    return COOKIE if port is None else f"{COOKIE}_{port}"


def session_of(request: Request) -> Secret | None:
    """The token in the cookie; None without one, or if it has not the form of one."""
    held = request.cookies.get(cookie_name(request.headers))
    return None if held is None else read_secret(held)


def begin_session(response: Response, secret: Secret, headers: Headers) -> None:
    """Let the browser that gets this response be the token's."""
    _set(response, secret.text, SESSION_SECONDS, headers)


def end(response: Response, headers: Headers) -> None:
    """Let it forget the token."""
    _set(response, "", 0, headers)


def _set(response: Response, value: str, seconds: int, headers: Headers) -> None:
    name = cookie_name(headers)
    cookie = SimpleCookie({name: value})
    cookie_value = cookie[name]
    cookie_value["path"], cookie_value["max-age"], cookie_value["httponly"], cookie_value["samesite"] = (
        CONSOLE,
        seconds,
        True,
        "Strict",
    )
    if not is_loopback(headers):
        cookie_value["secure"] = True
    response.headers.append("set-cookie", cookie.output(header="").strip())


def csrf_of(secret: Secret) -> str:
    """What the forms of a session carry: nobody who has not the token can know it."""
    return hmac.new(secret.secret.encode(), b"console-csrf", "sha256").hexdigest()


def check_csrf(secret: Secret, form: Mapping[str, object]) -> None:
    """Raises `Refused` (form_expired) if a form was not made for this session."""
    csrf = form.get(CSRF)
    if not isinstance(csrf, str) or not hmac.compare_digest(csrf.encode(), csrf_of(secret).encode()):
        raise Refused(
            "form_expired", "this form belongs to another session: load the page again, and send the form again"
        )


def check_origin(headers: Headers) -> None:
    """Raises `Refused` (origin_not_allowed) unless a page of this very address sent the change.

    Browsers say where a POST comes from. The guard has refused origins that nobody listed; those that are listed may
    ask `/v1`, and nothing here.
    """
    origin, host = headers.get("origin", "").lower(), headers.get("host", "").lower()
    if origin not in (f"http://{host}", f"https://{host}"):
        raise Refused("origin_not_allowed", "only pages of the console itself may send this request")


def is_loopback(headers: Headers) -> bool:
    """Whether the browser is on this machine, by the name that it calls."""
    return _called(headers).hostname in _LOOPBACK


def _called(headers: Headers) -> SplitResult:
    """The name that the browser calls, which the guard has checked."""
    return urlsplit(f"//{headers.get('host', '')}")
