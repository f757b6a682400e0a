"""Whose request it is: bearer tokens, looked up in the ledger, and what each may ask how often (protocol §14.6).

A token that was found is remembered for `KNOWN_SECONDS`, so one that is revoked is refused soon after. Tokens that
nobody has cost a look into the ledger each, so there is one bucket for all of them. No error says whether an id exists.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from starlette.datastructures import Headers

from turnstile.gateway.http.problems import Forbidden, Unauthenticated
from turnstile.gateway.limits import GatewayLimits
from turnstile.ledger.access.tokens import authenticate
from turnstile.ledger.pool import Pool
from turnstile.runtime.throttle import Throttle
from turnstile.schema.access import Principal, Right, Secret, TokenId, read_secret
from turnstile.schema.errors import Limited
from turnstile.schema.wire.limits import rate_limited

KNOWN_SECONDS: Final = 2.0
_REMEMBERED = 10_000
_STRANGERS_PER_SECOND = 100.0
_SCHEME = "bearer "


class Access:
    """The tokens of one gateway: known ones, their rates and their open streams."""

    def __init__(self, pool: Pool, limits: GatewayLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._known: OrderedDict[tuple[TokenId, bytes], tuple[Principal, float]] = OrderedDict()
        self._looking: dict[tuple[TokenId, bytes], asyncio.Future[Principal | None]] = {}
        self._throttle = Throttle(limits.rate, limits.burst)
        self._strangers = Throttle(_STRANGERS_PER_SECOND, round(_STRANGERS_PER_SECOND))
        self._streams: Counter[TokenId] = Counter()

    async def admit(self, headers: Headers, right: Right) -> Principal:
        """Whose request this is.

        Raises `Unauthenticated`, `Forbidden` if its role lacks the right, `Limited` (rate_limited).
        """
        principal = await self.principal(secret_in(headers))
        if wait := self._throttle.take(principal.token_id):
            raise rate_limited(wait)
        if not principal.may(right):
            raise Forbidden(f"a token of role {principal.role} may not {right}")
        return principal

    async def principal(self, secret: Secret) -> Principal:
        """Whose token this is; raises `Unauthenticated`, also for one that was revoked or has expired."""
        key = secret.token_id, secret.digest
        principal, until = self._known.get(key, (None, 0.0))
        if principal is not None and time.monotonic() < until:
            return principal
        looking = self._looking.get(key)
        if looking is None:  # all who ask meanwhile share the look
            if principal is None and (wait := self._strangers.take("")):
                raise Limited("rate_limited", "too many unknown tokens are tried: again later", retry_after=wait)
            looking = asyncio.ensure_future(self._pool.run(lambda conn: authenticate(conn, secret)))
            self._looking[key] = looking
            looking.add_done_callback(lambda _: self._looking.pop(key, None))
        principal = await asyncio.shield(looking)
        if principal is None:
            self._known.pop(key, None)
            raise Unauthenticated("the token is not valid")
        self._known[key] = (principal, time.monotonic() + KNOWN_SECONDS)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return principal

    @contextmanager
    def streaming(self, principal: Principal) -> Generator[None]:
        """Count an open stream of the token; raises `Limited` (too_many_streams)."""
        token, most = principal.token_id, self._limits.token_streams
        if self._streams[token] >= most:
            raise Limited("too_many_streams", f"the token has {most} open streams: close some", retry_after=1.0)
        self._streams[token] += 1
        try:
            yield
        finally:
            self._streams[token] -= 1
            if not self._streams[token]:
                del self._streams[token]

    @property
    def open_streams(self) -> int:
        """Open streams of all tokens."""
        return self._streams.total()


def secret_in(headers: Headers) -> Secret:
    """The token of a request; raises `Unauthenticated` if there is none, or something else."""
    given = headers.getlist("authorization")
    if len(given) != 1 or not given[0].lower().startswith(_SCHEME):
        raise Unauthenticated("a request needs the header `Authorization: Bearer TOKEN` (`turnstile token add`)")
    secret = read_secret(given[0][len(_SCHEME) :].strip())
    if secret is None:
        raise Unauthenticated("the token is not valid")
    return secret
