"""The client for programs without an event loop: `Client` in a thread of its own (docs/python.md).

    with turnstile.SyncClient() as client:
        for piece in client.ask("helper", "Say hello"):
            print(piece, end="")

Any number of threads may share one. Ctrl-C leaves a wait at once; the turn goes on.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeAlias, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import InterruptId
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.wire.events import Chunk
from turnstile.schema.wire.inbox import EnqueueReply
from turnstile.sdk.file_client import Files
from turnstile.sdk.interrupts import Interrupt
from turnstile.sdk.turn import Turn
from turnstile.sdk.turns import Client, Conversation

Result = TypeVar("Result")
Inner = TypeVar("Inner")
P = ParamSpec("P")
Method: TypeAlias = Callable[Concatenate[Any, P], Awaitable[Result]]
Blocking: TypeAlias = Callable[Concatenate[Any, P], Result]


def _waiting(method: Method[P, Result]) -> Blocking[P, Result]:
    """A method of `Turn`, `Interrupt`, `Conversation` or `Client`, for its blocking counterpart."""

    @wraps(method)
    def wait(self: "_Blocks", *args: P.args, **kwargs: P.kwargs) -> Result:
        client, awaited = self._parts()
        return client.call(lambda: getattr(awaited, method.__name__)(*args, **kwargs))

    return wait


def _calling(method: Callable[Concatenate[Any, P], Result]) -> Blocking[P, Result]:
    """A method of `Client` or `Conversation` that only makes a turn, while the client is connected."""

    @wraps(method)
    def call(self: "_Blocks", *args: P.args, **kwargs: P.kwargs) -> Result:
        client, owner = self._parts()
        client.portal()
        return getattr(owner, method.__name__)(*args, **kwargs)

    return call


def _wrapped(method: Blocking[P, Inner], wrapper: Callable[["SyncClient", Inner], Result]) -> Blocking[P, Result]:
    """The method with its result wrapped, so that the result's methods block too."""

    @wraps(method)
    def wrap(self: "_Blocks", *args: P.args, **kwargs: P.kwargs) -> Result:
        client, _ = self._parts()
        return wrapper(client, method(self, *args, **kwargs))

    return wrap


class _Blocks(Protocol):
    def _parts(self) -> tuple["SyncClient", object]:
        """The client, and the object whose methods are awaited."""
        ...


@dataclass(frozen=True, slots=True)
class SyncTurn:
    """A turn: iterate it for its text, or ask for its `result`. See `Turn`, whose methods it has."""

    client: "SyncClient"
    turn: Turn

    @property
    def reply(self) -> EnqueueReply | None:
        """The answer to the request, once the turn is started: agent, boxes, `duplicate`."""
        return self.turn.reply

    def _parts(self) -> tuple["SyncClient", Turn]:
        return self.client, self.turn

    start = _waiting(Turn.start)
    describe = _waiting(Turn.describe)
    result = _waiting(Turn.result)
    stop = _waiting(Turn.stop)
    steer = _waiting(Turn.steer)
    tree = _waiting(Turn.tree)

    def __iter__(self) -> Generator[str]:
        """Pieces of the answer's text as the model writes it, until the turn has ended."""
        pieces = self.turn.__aiter__()
        try:
            while (piece := self.client.call(lambda: anext(pieces, None))) is not None:
                yield piece
        finally:
            with suppress(BadRequest):  # the client is closed, and has ended the stream
                self.client.call(pieces.aclose)

    @contextmanager
    def chunks(self) -> Generator[Generator[Chunk]]:
        """All that the model writes, until the turn has ended: text, reasoning, calls of tools, by step and attempt."""
        streaming = self.turn.chunks()
        chunks = self.client.call(streaming.__aenter__)

        def each() -> Generator[Chunk]:
            while (chunk := self.client.call(lambda: anext(chunks, None))) is not None:
                yield chunk

        try:
            yield each()
        finally:
            with suppress(BadRequest):  # as above
                self.client.call(lambda: streaming.__aexit__(None, None, None))

    rerun = _wrapped(_waiting(Turn.rerun), lambda client, turn: SyncTurn(client, turn))  # noqa: PLW0108 -- not there yet


@dataclass(frozen=True, slots=True)
class SyncInterrupt:
    """A question to a person; see `Interrupt`, whose methods it has."""

    client: "SyncClient"
    interrupt: Interrupt

    @property
    def view(self) -> InterruptView:
        """All of it, as it was when it was read."""
        return self.interrupt.view

    @property
    def id(self) -> InterruptId:
        """Its id."""
        return self.interrupt.id

    @property
    def message(self) -> str:
        """What is asked; of `ask_human` a model wrote it."""
        return self.interrupt.message

    @property
    def arguments(self) -> JsonObject | None:
        """All arguments of the call; a model wrote them."""
        return self.interrupt.arguments

    def _parts(self) -> tuple["SyncClient", Interrupt]:
        return self.client, self.interrupt

    approve = _waiting(Interrupt.approve)
    edit = _waiting(Interrupt.edit)
    reject = _waiting(Interrupt.reject)
    respond = _waiting(Interrupt.respond)


@dataclass(frozen=True, slots=True)
class SyncConversation:
    """A conversation with an agent, or with the instance of a profile that is made for it."""

    client: "SyncClient"
    conversation: Conversation

    def _parts(self) -> tuple["SyncClient", Conversation]:
        return self.client, self.conversation

    stop = _waiting(Conversation.stop)

    ask = _wrapped(_calling(Conversation.ask), SyncTurn)


@dataclass(frozen=True, slots=True)
class SyncFiles:
    """Files of the project; see `Files`, whose methods it has."""

    client: "SyncClient"
    files: Files

    def _parts(self) -> tuple["SyncClient", Files]:
        return self.client, self.files

    put = _waiting(Files.put)
    get = _waiting(Files.get)
    read = _waiting(Files.read)
    show = _waiting(Files.show)
    list = _waiting(Files.list)
    remove = _waiting(Files.remove)


class SyncClient:
    """`Client` without `async`; the same arguments. Connected inside `with`."""

    def __init__(
        self,
        address: str | None = None,
        *,
        project: str | None = None,
        channel: str | None = None,
        token: str | None = None,
        connect_timeout: float | None = None,
    ) -> None:
        self._client = Client(address, project=project, channel=channel, token=token, connect_timeout=connect_timeout)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal(name="turnstile client"))
            stack.enter_context(portal.wrap_async_context_manager(self._client))
            self._portal, self._stack = portal, stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        self._stack.__exit__(kind, error, trace)  # with an error, such as Ctrl-C, what still waits is cancelled

    ask = _wrapped(_calling(Client.ask), SyncTurn)

    def conversation(
        self, conversation_id: str, *, agent_id: str | None = None, profile_name: str | None = None
    ) -> SyncConversation:
        """A conversation with an agent or with a profile's instance; it begins with its first turn."""
        opened = self._client.conversation(conversation_id, agent_id=agent_id, profile_name=profile_name)
        return SyncConversation(self, opened)

    def turn(self, agent_turn_id: str) -> SyncTurn:
        """A turn that was asked for earlier, by anybody; raises `Refused` (`unknown_turn`)."""
        return SyncTurn(self, self.call(lambda: self._client.turn(agent_turn_id)))

    interrupts = _wrapped(
        _waiting(Client.interrupts), lambda client, interrupts: [SyncInterrupt(client, i) for i in interrupts]
    )
    interrupt = _wrapped(_waiting(Client.interrupt), SyncInterrupt)

    @property
    def files(self) -> SyncFiles:
        """Files of the project (docs/files.md)."""
        return SyncFiles(self, self._client.files)

    def _parts(self) -> tuple["SyncClient", Client]:
        return self, self._client

    budgets = _waiting(Client.budgets)
    budget = _waiting(Client.budget)
    raise_budget = _waiting(Client.raise_budget)
    limits = _waiting(Client.limits)
    limit_project = _waiting(Client.limit_project)

    put_schedule = _waiting(Client.put_schedule)
    schedules = _waiting(Client.schedules)
    schedule = _waiting(Client.schedule)
    pause_schedule = _waiting(Client.pause_schedule)
    resume_schedule = _waiting(Client.resume_schedule)
    remove_schedule = _waiting(Client.remove_schedule)
    trigger_schedule = _waiting(Client.trigger_schedule)

    def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """What `work` comes to in the client's event loop; raises `BadRequest` unless the client is connected."""

        async def run() -> Result:
            return await work()

        return self.portal().call(run)

    def portal(self) -> BlockingPortal:
        """The event loop that the client runs in; raises `BadRequest` unless it is connected."""
        if self._portal is None:
            raise BadRequest("the client is not connected: use it inside `with`")
        return self._portal
