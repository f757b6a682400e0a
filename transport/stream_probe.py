"""Checks that the streams take messages, and which consumers have an open pull (protocol §5). It changes no definition.

A probe stores one empty message in a stream and looks for it in the stream's state. Its subject belongs to this probe
alone, in a project and a target that do not exist, so no consumer acts on it; bridge and worker have the right to
publish it. It is removed on request; otherwise the stream keeps it as long as any other. Costs two or three round trips
per stream.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence

import nats.errors
from nats.js.errors import NoStreamResponseError
from pydantic import Field, ValidationError

from turnstile.schema.amounts import amount
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.errors import BadRequest, ConfigError, ServerUnavailable
from turnstile.schema.ids import ChannelId, ProjectId, token
from turnstile.schema.tools import expand_subject
from turnstile.schema.wire import subjects
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection, words_of
from turnstile.transport.streams import JetStreamError, call_api, covers

_PAGES = 20
_NOT_FOUND = 404
_TRIES = 4
_TRY_SECONDS = 0.15
"""Between two pulls a consumer looks idle for a moment, so idle consumers are queried again."""
_ANY = "*"


class NoStream(ServerUnavailable):
    """JetStream answers, and no stream takes the subject."""

    code: str = "no_stream"


class _State(Tolerant):
    last_seq: int
    subjects: dict[str, int] | None = None


class _Info(Tolerant):
    state: _State


class _ConsumerConfig(Tolerant):
    filter_subject: str = ""
    filter_subjects: list[str] | None = None


class Consumer(Tolerant):
    """A durable consumer and its open pulls."""

    name: str
    config: _ConsumerConfig = _ConsumerConfig()
    num_waiting: int = 0
    """Open pulls."""
    num_ack_pending: int = 0
    """Messages delivered and not yet acknowledged."""
    num_pending: int = 0
    push_bound: bool = False

    @property
    def listens(self) -> bool:
        """Whether a pull is open now."""
        return self.num_waiting > 0 or self.push_bound

    def takes(self, pattern: str) -> bool:
        """Whether it gets every message whose subject matches the pattern."""
        filters = self.config.filter_subjects or [self.config.filter_subject]
        return any(not f or covers(f, pattern) for f in filters)


class _ConsumerPage(Tolerant):
    total: int = 0
    consumers: list[Consumer] | None = Field(default=None)


async def probe_streams(
    conn: NatsConnection, *, timeout: float = 2.0, remove: bool = False
) -> dict[str, ServerUnavailable | ConfigError | None]:
    """Probe each stream; returns the error by the stream's name, None where it stored and kept the message."""
    probe = uuid.uuid4().hex[:12]
    probed = subjects.stream_probes(probe)
    troubles = await asyncio.gather(*(_trouble(conn, stream, probed[stream], timeout, remove) for stream in probed))
    return dict(zip(probed, troubles, strict=True))


async def _trouble(
    conn: NatsConnection, stream: str, subject: str, timeout: float, remove: bool
) -> ServerUnavailable | ConfigError | None:
    try:
        await _probe(conn, stream, subject, timeout)
        if remove:
            await call_api(conn, f"STREAM.PURGE.{stream}", {"filter": subject})
    except JetStreamError as error:  # of a stream that is there, as when its disk is full
        return ServerUnavailable(str(error))
    except (ServerUnavailable, ConfigError) as error:
        return error
    return None


async def _probe(conn: NatsConnection, stream: str, subject: str, timeout: float) -> None:
    try:
        stored = await conn.store(subject, b"", timeout=timeout)
    except NoStreamResponseError:
        await call_api(conn, "INFO", {})  # raises where JetStream itself is off
        raise NoStream(f"no stream takes {subject}") from None
    except NATS_TROUBLE as error:
        if any(subject.lower() in violation.lower() for violation in conn.violations):
            raise ConfigError("this user may not store messages in it") from None
        trouble = "it did not acknowledge a message" if isinstance(error, TimeoutError) else "it refuses messages"
        raise ServerUnavailable(f"{trouble}: {words_of(error)}") from error
    if stored.stream != stream:
        raise ConfigError(f"its messages are taken by another stream, {stored.stream}")
    info = await call_api(conn, f"STREAM.INFO.{stream}", {"subjects_filter": subject})
    try:
        state = _Info.model_validate(info).state
    except ValidationError as error:
        raise ServerUnavailable(f"its state: {words_of(error)}") from None
    if state.last_seq < stored.seq or not (state.subjects or {}).get(subject):
        raise ServerUnavailable(f"it acknowledged message {stored.seq} and does not have it")


async def list_consumers(conn: NatsConnection) -> list[Consumer] | None:
    """All consumers of commands; None if this user may not list them. Raises `ServerUnavailable`."""
    if not await conn.may_publish(f"$JS.API.CONSUMER.LIST.{subjects.CMD_STREAM}"):
        return None
    consumers: list[Consumer] = []
    for _ in range(_PAGES):
        page = await _page(conn, len(consumers))
        consumers += page.consumers or []
        if not page.consumers or len(consumers) >= page.total:
            break
    return consumers


async def named_consumers(conn: NatsConnection, names: Iterable[str]) -> list[Consumer] | None:
    """Those of the named consumers that exist; None if this user may not look them up."""
    consumers: list[Consumer] = []
    for name in names:
        subject = f"CONSUMER.INFO.{subjects.CMD_STREAM}.{name}"
        if not await conn.may_publish(f"$JS.API.{subject}"):
            return None
        try:
            consumers.append(Consumer.model_validate(await call_api(conn, subject, {})))
        except JetStreamError as error:
            if error.status != _NOT_FOUND:
                raise
    return consumers


def tool_pattern(target_subject: str | None, project: ProjectId) -> str | None:
    """The subject of a tool's calls with a wildcard for the channel; None for a `target_subject` that is invalid."""
    target = target_subject or ""
    try:
        expand_subject(target, project, ChannelId("any"))
    except BadRequest:
        return None
    return target.replace("{project_id}", project).replace("{channel_id}", _ANY)


def tool_consumers(pattern: str, project: ProjectId) -> list[str]:
    """The consumer names that `ToolService` gives a tool of this pattern."""
    parts = pattern.split(".")[6:]
    if len(parts) < 2:
        return []
    shared = f"turnstile_tool_{'_'.join(token(part, 'target') for part in parts)}"
    return [shared, f"{shared}@{project}"]


async def find_listeners(
    ask: Callable[[], Awaitable[list[Consumer] | None]], names: Iterable[str], patterns: Sequence[str]
) -> list[Consumer] | None:
    """What `ask` finds, asked again for a moment until those named, and one for each pattern, have an open pull.

    None if `ask` says so.
    """
    seen: dict[str, Consumer] = {}
    for _ in range(_TRIES):
        consumers = await ask()
        if consumers is None:
            return None
        seen |= {c.name: c for c in consumers if c.listens or c.name not in seen}
        waits = all(seen[name].listens for name in names if name in seen)
        if waits and all(any(c.listens and c.takes(one) for c in seen.values()) for one in patterns):
            break
        await asyncio.sleep(_TRY_SECONDS)
    return list(seen.values())


async def _page(conn: NatsConnection, offset: int) -> _ConsumerPage:
    request: JsonObject = {"offset": offset}
    return _ConsumerPage.model_validate(await call_api(conn, f"CONSUMER.LIST.{subjects.CMD_STREAM}", request))


async def answers(conn: NatsConnection, subject: str, *, timeout: float = 2.0) -> bool | None:
    """Whether an empty request on the subject gets a reply; None if this user may not publish it."""
    try:
        await conn.request(subject, b"{}", timeout=timeout)
    except nats.errors.NoRespondersError:
        return False
    except NATS_TROUBLE as error:
        if any(subject.lower() in violation.lower() for violation in conn.violations):
            return None
        raise ServerUnavailable(f"no answer in {amount(timeout)} s: {words_of(error)}") from None
    return True
