"""Listeners for tests of the message pump: the payload says what to do, and effects are appended to a file."""

import asyncio
import base64
import contextvars
import os
import signal
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.support.conditions import until
from turnstile.schema.pump.listeners import listener
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.primitives import HandlerMetadata, HandlerResponse, Huh, SystemErrorMessage

DIRECTORY = "ORGANISM_DIRECTORY"
"""The variable that names the directory where listeners write their effects and read at which hop to die."""
SECRET = "the words of an exception"


class Order(Payload, tag="order"):
    """What `worker` is to do: a word, and with what."""

    do: str
    what: str = ""


class Errand(Order, tag="errand"):
    """The same for `clerk`."""


class Task(Order, tag="task"):
    """The same for `manager`."""


class Done(Payload, tag="done"):
    """What came of it."""

    said: str


class Shout(Payload, tag="shout"):
    """To be said loudly."""

    text: str


class Shouted(Payload, tag="shouted"):
    """Said loudly."""

    text: str


class Stray(Payload, tag="stray"):
    """A payload that nobody declared."""

    text: str = ""


class Relay(Payload, tag="relay"):
    """Goes on to the other relay until nothing is `left`; then it comes back."""

    left: int
    text: str = ""


class Return(Relay, tag="return"):
    """The same for the other relay."""


class Relayed(Payload, tag="relayed"):
    """What came back."""

    text: str


ADDRESSES: dict[str, type[Order]] = {"worker": Order, "clerk": Errand, "manager": Task}
Deed = Callable[[str, HandlerMetadata], Awaitable[object]]


def note(what: str) -> None:
    """Append a line to the file of effects."""
    if directory := os.environ.get(DIRECTORY):
        with (Path(directory) / "effects").open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")


def said(text: str) -> HandlerResponse:
    """A response."""
    return HandlerResponse.respond(Done(said=text))


async def tell(what: str, metadata: HandlerMetadata) -> object:
    """Responds with what the handler was told of itself."""
    return said(metadata.model_dump_json())


async def ask(what: str, _: HandlerMetadata) -> object:
    """Forwards an order to another: `target/do/what`."""
    target, do, rest = what.split("/", 2)
    return HandlerResponse(ADDRESSES[target](do=do, what=rest), to=target)


async def forward(what: str, _: HandlerMetadata) -> object:
    """Forwards a shout to whoever is named."""
    return HandlerResponse(Shout(text="hello"), to=what)


async def iterate(what: str, metadata: HandlerMetadata) -> object:
    """Calls itself so often, by its root tag, then tells; what is left and the first thread_id are in `what`."""
    left, _, first = what.partition("/")
    first = first or metadata.thread_id
    if left == "0":
        return said(f"{metadata.is_self_call} {metadata.from_id} {metadata.thread_id == first}")
    return HandlerResponse(Order(do="iterate", what=f"{int(left) - 1}/{first}"))


async def gate(what: str, _: HandlerMetadata) -> object:
    """Waits for a file, then responds with its name."""
    path = Path(what)
    path.with_suffix(".begun").touch()
    await until(lambda: is_there(path), 60, f"{path} is there", pause=0.01)
    note(f"gate {path.name}")
    return said(path.name)


async def is_there(path: Path) -> bool:
    """Whether the file exists."""
    return path.exists()  # noqa: ASYNC240 -- one look at a file


async def crash(what: str, _: HandlerMetadata) -> object:
    raise RuntimeError(f"{SECRET} {what}")


async def leave(what: str, _: HandlerMetadata) -> object:
    sys.exit(f"{SECRET} {what}")


async def give_up(what: str, _: HandlerMetadata) -> object:
    raise asyncio.CancelledError(f"{SECRET} {what}")


async def sleep(what: str, _: HandlerMetadata) -> object:
    await asyncio.sleep(60)
    return said(what)


async def cling(what: str, _: HandlerMetadata) -> object:
    """Does not hear that it is to end."""
    until = time.monotonic() + 3
    while time.monotonic() < until:
        try:
            await asyncio.sleep(3)
        except asyncio.CancelledError:
            continue
    return said(what)


async def deaf(what: str, _: HandlerMetadata) -> object:
    """Never hears that it is to end."""
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


async def thread(what: str, _: HandlerMetadata) -> object:
    """Waits for a thread that nothing can end."""
    await asyncio.to_thread(time.sleep, 60)
    return said(what)


async def block(what: str, _: HandlerMetadata) -> object:
    """Holds its whole process up until there is a file, and goes on while the engine offers its message again."""
    note("block")
    while not os.access(what, os.F_OK):
        time.sleep(0.01)  # noqa: ASYNC251 -- what must not be done
    note("unblocked")
    await asyncio.sleep(2)
    return said("too late")


async def die(what: str, _: HandlerMetadata) -> object:
    note("die")
    os.kill(os.getpid(), signal.SIGKILL)
    return said(what)


def returns(response: object) -> Deed:
    """A deed that returns this."""

    async def deed(what: str, metadata: HandlerMetadata) -> object:
        return response

    return deed


async def say(what: str, _: HandlerMetadata) -> object:
    return said(what)


async def flood(what: str, _: HandlerMetadata) -> object:
    """Responds with so many characters."""
    return said("x" * int(what))


async def pry(what: str, _: HandlerMetadata) -> object:
    """Responds with all that context variables hold."""
    return said(repr([*contextvars.copy_context().values()]))


DEEDS: dict[str, Deed] = {
    "flood": flood,
    "pry": pry,
    "tell": tell,
    "say": say,
    "ask": ask,
    "forward": forward,
    "iterate": iterate,
    "gate": gate,
    "crash": crash,
    "exit": leave,
    "cancel": give_up,
    "sleep": sleep,
    "cling": cling,
    "deaf": deaf,
    "thread": thread,
    "block": block,
    "die": die,
    "nothing": returns(None),
    "garbage": returns("a string"),
    "self": returns(HandlerResponse(Order(do="iterate", what="0"), to="worker")),
    "misfit": returns(HandlerResponse(Done(said="no shout"), to="shouter")),
    "tag": returns(HandlerResponse(Shout(text="by its tag"))),
    "stray": returns(HandlerResponse(Stray())),
    "stray_self": returns(HandlerResponse(Stray(), to="worker")),
    "stray_response": returns(HandlerResponse.respond(Stray(text="unknown"))),
    "system": returns(HandlerResponse(SystemErrorMessage.timeout(), to="shouter")),
    "system_response": returns(HandlerResponse.respond(SystemErrorMessage.timeout())),
    "huh": returns(HandlerResponse.respond(Huh.of(b"mine"))),
}
"""What an order may say."""


async def act(payload: Payload, metadata: HandlerMetadata) -> object:
    """Do what an order says; respond with what was heard."""
    match payload:
        case Order(do=do, what=what):
            return await DEEDS[do](what, metadata)
        case Done() | Stray():
            return said(f"{metadata.from_id} said {payload.model_dump_json()}")
        case Shouted(text=text):
            return said(f"{metadata.from_id} shouted {text}")
        case SystemErrorMessage():
            return said(f"{metadata.from_id} SystemError {payload.code} {payload.retry_allowed} {payload.message}")
        case Huh():
            attempt = base64.b64decode(payload.original_attempt).decode()
            return said(f"{metadata.from_id} huh {payload.error} {attempt}")
        case _:
            return None


async def work(payload: Payload, metadata: HandlerMetadata) -> HandlerResponse | None:
    """Any of the deeds; returns what a handler should not where it is told to."""
    return await act(payload, metadata)  # pyright: ignore[reportReturnType] -- on purpose


worker = listener("worker", payload=Order, description="Does it.", answers=[Done], deadline_seconds=1)(work)
clerk = listener("clerk", payload=Errand, description="Does it too.", answers=[Done], deadline_seconds=30)(work)
manager = listener(
    "manager", payload=Task, description="Lets it be done.", agent=True, peers=["clerk", "manager"], answers=[Done]
)(work)


@listener("shouter", payload=Shout, description="Says it loudly.", answers=[Shouted])
async def shout(payload: Shout, metadata: HandlerMetadata) -> HandlerResponse | None:
    """Responds in capitals."""
    return HandlerResponse.respond(Shouted(text=payload.text.upper()))


async def pass_on(payload: Payload, metadata: HandlerMetadata) -> HandlerResponse | None:
    """Down to the other relay, and up again."""
    place = payload.model_dump_json()
    fate = fate_of(place)
    if fate == "at once":
        os.kill(os.getpid(), signal.SIGKILL)
    note(f"relay {place}")
    for point in fate.split("+") if fate else ():
        (Path(os.environ["TURNSTILE_FAULTS_DIR"]) / point).unlink()  # so that it strikes once more
    match payload:
        case Relay(left=0, text=text):
            return HandlerResponse.respond(Relayed(text=f"{text}|"))
        case Relay(left=left, text=text):
            there = Return if type(payload) is Relay else Relay
            return HandlerResponse(there(left=left - 1, text=f"{text}{left}>"))
        case Relayed(text=text):
            return HandlerResponse.respond(Relayed(text=f"{text}<"))
        case _:
            return None


def fate_of(place: str) -> str | None:
    """How this process dies at this hop: takes the next line of the file `fates`, once per hop; None if it goes on."""
    directory = Path(os.environ.get(DIRECTORY, "/nowhere"))
    fates = directory / "fates"
    if not fates.exists():
        return None
    try:
        (directory / f"met-{zlib.crc32(place.encode())}").touch(exist_ok=False)
    except FileExistsError:
        return None
    first, *rest = [*fates.read_text(encoding="utf-8").split(","), "", ""]
    fates.write_text(",".join(rest), encoding="utf-8")
    return first or None


relay = listener("relay", payload=Relay, description="Passes on.", answers=[Relayed], retries=9)(pass_on)
back = listener("return", payload=Return, description="Passes on, too.", answers=[Relayed], retries=9)(pass_on)
