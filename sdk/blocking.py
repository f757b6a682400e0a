"""The client for programs without an event loop: `Client` in a thread of its own (docs/python.md).

    with turnstile.SyncClient() as client:
        for piece in client.ask("helper", "Say hello"):
            print(piece, end="")

Any number of threads may share one. Ctrl-C leaves a wait at once; the turn goes on.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.wire.descriptions import TreeTurn
from turnstile.sdk.turn import Cascade, Turn, TurnResult
from turnstile.sdk.turns import Client


@dataclass(frozen=True, slots=True)
class SyncTurn:
    """A turn: iterate it for its text, or ask for its `result`. See `Turn`, whose methods it has."""

    portal: BlockingPortal
    turn: Turn

    def start(self) -> AgentTurnId:
        """Enqueue the turn unless that was done, and return its id; raises `Refused` or `ServerUnavailable`."""
        return self.portal.call(self.turn.start)

    def __iter__(self) -> Generator[str]:
        """Pieces of the answer's text as the model writes it, until the turn has ended."""
        pieces = self.turn.__aiter__()
        try:
            while (piece := self.portal.call(anext, pieces, None)) is not None:
                yield piece
        finally:
            self.portal.call(pieces.aclose)

    def result(self, timeout: float | None = None) -> TurnResult:
        """What the turn came to; raises `TimeoutError` after `timeout` seconds: the turn then goes on."""
        return self.portal.call(self.turn.result, timeout)

    def stop(self, reason: str = "", *, cascade: Cascade = "waited") -> bool:
        """End the turn and the turns below it; False if it was over. Raises `Refused` or `ServerUnavailable`."""

        async def stop() -> bool:
            return await self.turn.stop(reason, cascade=cascade)

        return self.portal.call(stop)

    def tree(self) -> Sequence[TreeTurn]:
        """Every turn of the tree that it is in, parents before children."""
        return self.portal.call(self.turn.tree)


class SyncClient:
    """`Client` without `async`; the same arguments. Connected inside `with`."""

    def __init__(
        self,
        address: str | None = None,
        *,
        project: str | None = None,
        channel: str | None = None,
        token: str | None = None,
    ) -> None:
        self._client = Client(address, project=project, channel=channel, token=token)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal(name="turnstile client"))
            stack.enter_context(self._portal.wrap_async_context_manager(self._client))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        self._stack.close()

    def ask(
        self,
        agent_id: str | None,
        instruction: str | None = None,
        *,
        conversation: str | None = None,
        result_fields: Sequence[str] | Mapping[str, str] = (),
        context_box_id: str | None = None,
        profile_name: str | None = None,
        model: str | None = None,
        correlation_id: str | None = None,
    ) -> SyncTurn:
        """A turn that is enqueued when it is first iterated, waited for or started; see `Client.ask`."""
        portal = self._opened
        turn = self._client.ask(
            agent_id,
            instruction,
            conversation=conversation,
            result_fields=result_fields,
            context_box_id=context_box_id,
            profile_name=profile_name,
            model=model,
            correlation_id=correlation_id,
        )
        return SyncTurn(portal, turn)

    def turn(self, agent_turn_id: str) -> SyncTurn:
        """A turn that was asked for earlier, by anybody; raises `Refused` (`unknown_turn`)."""
        return SyncTurn(self._opened, self._opened.call(self._client.turn, agent_turn_id))

    @property
    def _opened(self) -> BlockingPortal:
        if self._portal is None:
            raise BadRequest("the client is not connected: use it inside `with`")
        return self._portal
