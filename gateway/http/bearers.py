"""Whose request it is: bearer tokens, looked up in the ledger, and what each may ask how often (protocol §14.3).

A token that was found is remembered for `KNOWN_SECONDS`, so one that is revoked is refused soon after. All tokens that
wait are looked up by one statement, and the next statement begins when it has ended: so unknown tokens hold one
connection, however many come. Tokens that were found before have a lane of their own. Only a token that was not found
counts against its address, so no flood of unknown tokens refuses a valid one. No error says whether an id exists.
"""

import asyncio
import contextlib
import time
from collections import Counter, OrderedDict
from collections.abc import Generator
from contextvars import Context
from itertools import islice
from typing import Final

from starlette.datastructures import Headers

from turnstile.gateway.bounds import GatewayLimits
from turnstile.gateway.http.problems import Forbidden, Unauthenticated
from turnstile.ledger.access.tokens import authenticate
from turnstile.ledger.pool import Pool
from turnstile.runtime.shares import asks
from turnstile.runtime.throttle import Throttle
from turnstile.schema.access import Principal, Right, Secret, TokenId, read_secret
from turnstile.schema.errors import Limited, ServerUnavailable
from turnstile.schema.wire.limits import rate_limited

KNOWN_SECONDS: Final = 2.0
_REMEMBERED = 10_000
_FAILURES_PER_SECOND = 100.0
_LOOKED_UP_AT_ONCE = 500
_SCHEME = "bearer "


class _Lane:
    """Looks tokens up: one statement at a time, each for all that wait. Belongs to no project's share."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._waiting: dict[Secret, asyncio.Future[Principal | None]] = {}
        self._running: asyncio.Task[None] | None = None

    async def find(self, secret: Secret) -> Principal | None:
        """Whose token it is; raises `ServerUnavailable`."""
        if (answer := self._waiting.get(secret)) is None:
            answer = self._waiting[secret] = asyncio.get_running_loop().create_future()
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="token look-ups", context=Context())
        return await asyncio.shield(answer)

    async def _run(self) -> None:
        try:
            while secrets := list(islice(self._waiting, _LOOKED_UP_AT_ONCE)):
                principals = await self._pool.run(lambda conn, secrets=secrets: authenticate(conn, secrets))
                for secret in secrets:
                    self._waiting.pop(secret).set_result(principals.get(secret))
        except Exception as error:  # noqa: BLE001 -- those who wait raise it
            for answer in self._waiting.values():
                answer.set_exception(error)
                answer.exception()  # all who waited may have gone away
            self._waiting.clear()
        finally:
            self._running = None


class Access:
    """The tokens of one gateway: known ones, their rates and their open streams."""

    def __init__(self, pool: Pool, limits: GatewayLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._known: OrderedDict[tuple[TokenId, bytes], tuple[Principal, float]] = OrderedDict()
        self._known_lane, self._lane = _Lane(pool), _Lane(pool)
        self._throttle = Throttle(limits.rate, limits.burst)
        self._failures = Throttle(_FAILURES_PER_SECOND, round(_FAILURES_PER_SECOND))
        self._streams: Counter[TokenId] = Counter()

    def admit(self, principal: Principal, right: Right | frozenset[Right]) -> None:
        """Let a request in; raises `Forbidden` if the token's role lacks the right, `Limited` (rate_limited)."""
        if wait := self._throttle.take(principal.token_id):
            raise rate_limited(wait)
        self.check(principal, right)

    def check(self, principal: Principal, right: Right | frozenset[Right]) -> None:
        """Raises `Forbidden` if the token's role lacks the right, or all of these."""
        rights = right if isinstance(right, frozenset) else {right}
        if not any(principal.may(r) for r in rights):
            raise Forbidden(f"a token of role {principal.role} may not {named_rights(right)}")

    async def principal(self, secret: Secret, address: str = "") -> Principal:
        """Whose token this is; `address` is where the request comes from.

        Raises `Unauthenticated`, also for one that was revoked or has expired, `Limited` instead of it where too many
        are tried from there, and `ServerUnavailable`.
        """
        principal = await self._find(secret)
        if principal is None:
            if wait := self._failures.take(address):
                raise Limited("rate_limited", "too many unknown tokens are tried: again later", retry_after=wait)
            raise Unauthenticated("the token is not valid")
        asks(principal.project_id)
        return principal

    async def still(self, secret: Secret) -> None:
        """Whether a stream of this token may go on; raises `Unauthenticated`.

        While the ledger is away it may: nobody can revoke a token there.
        """
        with contextlib.suppress(ServerUnavailable):
            if await self._find(secret) is None:
                raise Unauthenticated("the token is not valid")

    async def _find(self, secret: Secret) -> Principal | None:
        key = secret.token_id, secret.digest
        principal, until = self._known.get(key, (None, 0.0))
        if principal is not None and time.monotonic() < until:
            return principal
        lane = self._lane if principal is None else self._known_lane
        principal = await lane.find(secret)
        self._known.pop(key, None)
        if principal is not None:
            self._known[key] = (principal, time.monotonic() + KNOWN_SECONDS)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return principal

    @contextlib.contextmanager
    def streaming(self, principal: Principal) -> Generator[None]:
        """Count an open stream of the token, or a request that waits; raises `Limited` (too_many_streams)."""
        token, most = principal.token_id, self._limits.token_streams
        if self._streams[token] >= most:
            message = f"the token has {most} open streams and requests that wait: end some"
            raise Limited("too_many_streams", message, retry_after=1.0)
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


def named_rights(right: Right | frozenset[Right]) -> str:
    """A right, or several of which one is enough, for people."""
    return " or ".join(sorted(right)) if isinstance(right, frozenset) else right


def secret_in(headers: Headers) -> Secret:
    """The token of a request; raises `Unauthenticated` if there is none, or something else."""
    values = headers.getlist("authorization")
    if len(values) != 1 or not values[0].lower().startswith(_SCHEME):
        raise Unauthenticated("a request needs the header `Authorization: Bearer TOKEN` (`turnstile token add`)")
    secret = read_secret(values[0][len(_SCHEME) :].strip())
    if secret is None:
        raise Unauthenticated("the token is not valid")
    return secret
