"""Declares the streams and durable consumers of protocol §5, idempotently, over the JetStream API.

An existing definition is widened, never narrowed, and keeps every field that this module does not know: it changes and
returns the raw JSON, which nats-py's own classes would not do. A stream gets more replicas, never fewer, and
only where that is asked for. Its bytes are bounded where that deletes nothing (`StreamStorage`): a flood fills no disk.
Of what the kernel publishes the oldest messages go. What clients publish is refused beyond a bound of each subject, so
that nobody's command goes for another's; a command leaves that stream when it is answered (`transport.durable`). A
consumer that cannot be updated is deleted and created again, starting after its acknowledgement floor. Declaring a
definition that exists costs one round trip and writes nothing.

A stream that has vanished is created again only after `GONE_SECONDS`: nats-server 2.15 forgets a stream before it moves
its files away. A stream created in between loses its files, and acknowledges nothing until the server restarts.
"""

import asyncio
import logging
from datetime import datetime
from typing import Final, Literal

import nats.errors
from pydantic import Field, ValidationError

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.errors import BadRequest, ConfigError, ServerUnavailable
from turnstile.schema.ids import ProjectId, token
from turnstile.schema.wire import subjects
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection, words_of
from turnstile.transport.json_messages import decode_object, encode

COMMANDS_CONSUMER: Final = "turnstile_bridge_verbs"
UI_ACTIONS_CONSUMER: Final = "turnstile_ui_actions"
PMO_CONSUMER: Final = "turnstile_pmo"
THREAD_TURNS_CONSUMER: Final = "turnstile_thread_turns"
PAST_TURNS_CONSUMER: Final = "turnstile_past_turns"
_SECOND = 1_000_000_000
logger = logging.getLogger(__name__)
_UI_ACTION_SECONDS = 5
"""Short, since a user waits: an action that a bridge took and did not answer goes to another bridge after this."""
_HOUR = 3600 * _SECOND
_TIMEOUT_SECONDS = 3.0
_FEWEST_OF_SUBJECT = 16
GONE_SECONDS: Final = 1.0
"""How long a stream must have been gone before it is created again."""
_NOT_FOUND = 404
_UNAVAILABLE = 503
_CONSUMER_CREATE = 10012
_NO_STORAGE = 10047
"""The server's disk, or its share of the disk, is full."""
_PUSH_FIELDS = ("deliver_subject", "deliver_group")

MOST_OF_SUBJECT: Final = 1000
"""Commands of one subject that wait, where the stream has no bytes."""
_STREAMS: Final[tuple[JsonObject, ...]] = tuple(
    {
        "name": name,
        "subjects": [*patterns],
        "max_age": hours * _HOUR,
        "duplicate_window": _HOUR,
        "discard": discard,
        "retention": "limits",
        **more,
    }
    for name, patterns, hours, discard, more in (
        (subjects.CMD_STREAM, subjects.CMD_SUBJECTS, 24, "old", {}),
        (subjects.ASK_STREAM, subjects.ASK_SUBJECTS, 24, "new", {"discard_new_per_subject": True}),
        (subjects.EVT_STREAM, (subjects.EVT_SUBJECTS,), 7 * 24, "old", {}),
    )
)
STREAMS: Final = tuple(str(stream["name"]) for stream in _STREAMS)
"""Their names; the kernel's commands come first, since a wide one has to give up what the next one takes."""


class JetStreamError(ConfigError):
    """JetStream refused a definition; `status` and `err_code` are its own."""

    def __init__(self, message: str, status: int, err_code: int) -> None:
        super().__init__(message)
        self.status = status
        self.err_code = err_code


class NoRoom(ServerUnavailable):
    """NATS has not the room to store, or to reserve, what a definition says."""


class _ApiError(Tolerant):
    code: int = 500
    err_code: int = 0
    description: str = ""


class _StreamFields(Tolerant):
    """The fields of a stream that declaring may widen; times in nanoseconds, 0 and less is no limit."""

    subjects: list[str] = Field(default_factory=list)
    max_age: int = 0
    max_bytes: int = 0
    max_msg_size: int = 0
    max_msgs_per_subject: int = 0
    duplicate_window: int = 0
    num_replicas: int = 1


class _AckFloor(Tolerant):
    stream_seq: int = 0


class _ConsumerInfo(Tolerant):
    config: JsonObject
    ack_floor: _AckFloor = _AckFloor()


class _StreamState(Tolerant):
    bytes: int = 0
    subjects: dict[str, int] = Field(default_factory=dict[str, int])


class _StreamInfo(Tolerant):
    state: _StreamState


class _Purged(Tolerant):
    purged: int


class _Pending(Tolerant):
    num_pending: int


def wakeup_consumer(worker_target: str) -> str:
    """The name of the consumer of one target's doorbells; raises `BadRequest` if the target is no token."""
    return f"turnstile_wakeup_{token(worker_target, 'worker_target')}"


async def declare_streams(
    conn: NatsConnection, *, gone_seconds: float = GONE_SECONDS, raise_replicas: bool = False
) -> None:
    """Create or widen the streams; raises `ServerUnavailable`, or `JetStreamError` if JetStream refuses.

    A missing stream is created, as the connection's `storage` says, only if it is still missing after `gone_seconds`; 0
    suits a new installation. With `raise_replicas` one that has fewer replicas gets more.
    """
    replicas: JsonObject = {"num_replicas": conn.storage.replicas}
    bounded = [{**stream, **_bounds(conn, str(stream["name"]))} for stream in _STREAMS]
    streams = [{**stream, **replicas} if raise_replicas else stream for stream in bounded]
    missing = [s for s in streams if not await _widen(conn, s)]
    if missing and gone_seconds:
        await asyncio.sleep(gone_seconds)
        missing = [m for m in missing if not await _widen(conn, m)]
    for absent in missing:
        await _define(conn, "CREATE", {**absent, **replicas, "storage": conn.storage.kind})


def _bounds(conn: NatsConnection, name: str) -> JsonObject:
    size = conn.storage.events_bytes if name == subjects.EVT_STREAM else conn.storage.commands_bytes
    bounds: JsonObject = {"max_msg_size": conn.max_payload, **({"max_bytes": size} if size else {})}
    if name == subjects.ASK_STREAM:  # the largest messages of one subject fill half of the stream
        most = size // (2 * conn.max_payload) if size else MOST_OF_SUBJECT
        bounds["max_msgs_per_subject"] = max(_FEWEST_OF_SUBJECT, min(most, MOST_OF_SUBJECT))
    return bounds


async def _define(conn: NatsConnection, how: Literal["CREATE", "UPDATE"], config: JsonObject) -> None:
    """Create or update a stream; unbounded where the server has not the room to reserve its bytes."""
    subject = f"STREAM.{how}.{config['name']}"
    try:
        await call_api(conn, subject, config)
    except NoRoom as error:
        if "max_bytes" not in config:
            raise
        logger.warning("%s goes on without a bound on its bytes: %s", config["name"], error)
        await call_api(conn, subject, {name: value for name, value in config.items() if name != "max_bytes"})


async def _widen(conn: NatsConnection, stream: JsonObject) -> bool:
    """Widen the stream to at least `stream`; returns False if it does not exist."""
    name = stream["name"]
    try:
        info = await call_api(conn, f"STREAM.INFO.{name}", {})
    except JetStreamError as error:
        if error.status != _NOT_FOUND:
            raise
        return False
    config = info.get("config")
    held = _StreamInfo.model_validate(info).state.bytes
    if isinstance(config, dict) and (wider := widened(config, stream, held)) != config:
        await _define(conn, "UPDATE", wider)
    return True


def widened(config: JsonObject, declared: JsonObject, held: int = 0) -> JsonObject:
    """`config` widened to `declared`: all subjects of both, the longer age and duplicate window, the more replicas.

    A bound on bytes or on a message is the larger of both; a stream without the first gets it unless it `held` more.
    Only a subject that has a stream of its own by now is given up.
    """
    have, want = _StreamFields.model_validate(config), _StreamFields.model_validate(declared)
    given_up = subjects.ASK_SUBJECTS if config.get("name") == subjects.CMD_STREAM else ()
    still = [old for old in have.subjects if not any(covers(old, other) for other in given_up)]
    missing = [new for new in want.subjects if not any(covers(old, new) for old in still)]
    kept = [old for old in still if not any(covers(new, old) for new in missing)]
    wider = {**config, "duplicate_window": max(have.duplicate_window, want.duplicate_window)}
    wider["discard"] = declared.get("discard", "old")
    wider["subjects"] = [*kept, *missing]
    wider["num_replicas"] = max(have.num_replicas, want.num_replicas)
    wider["max_age"] = have.max_age and max(have.max_age, want.max_age)
    for name, has, wants in (
        ("max_bytes", have.max_bytes, want.max_bytes),
        ("max_msg_size", have.max_msg_size, want.max_msg_size),
    ):
        if wants > 0 and (has > 0 or (name == "max_bytes" and held <= wants)):
            wider[name] = max(has, wants)
    if want.max_msgs_per_subject:
        wider["max_msgs_per_subject"] = max(have.max_msgs_per_subject, want.max_msgs_per_subject)
    if "discard_new_per_subject" in wider or "discard_new_per_subject" in declared:
        wider["discard_new_per_subject"] = declared.get("discard_new_per_subject", False)
    return wider


def covers(pattern: str, other: str) -> bool:
    """True if every subject that matches `other` matches `pattern`; both may have wildcards."""
    patterns, others = pattern.split("."), other.split(".")
    for position, part in enumerate(patterns):
        if part == ">":
            return len(others) > position
        if position >= len(others) or others[position] == ">":
            return False
        if part not in ("*", others[position]):
            return False
    return len(patterns) == len(others)


async def declare_consumer(
    conn: NatsConnection,
    name: str,
    filter_subject: str,
    *,
    stream: str = subjects.CMD_STREAM,
    ack_wait_seconds: int = 30,
    max_ack_pending: int = 1000,
    max_waiting: int = 512,
    deliver_policy: Literal["all", "new"] = "all",
) -> None:
    """Create or update a durable pull consumer with explicit ack and unlimited redelivery.

    A new one starts with the oldest message that the stream still holds, unless `deliver_policy` is `new`. Raises as
    `declare_streams` does.
    """
    declared: JsonObject = {
        "name": name,
        "durable_name": name,
        "filter_subject": filter_subject,
        "ack_policy": "explicit",
        "ack_wait": ack_wait_seconds * _SECOND,
        "max_deliver": -1,
        "max_ack_pending": max_ack_pending,
        "max_waiting": max_waiting,
    }
    existing = await _consumer_info(conn, stream, name)
    if existing is None:
        await _create_consumer(conn, stream, {**declared, "deliver_policy": deliver_policy, "replay_policy": "instant"})
        return
    merged = {**{key: value for key, value in existing.config.items() if key != "filter_subjects"}, **declared}
    if merged == existing.config:
        return
    if not any(existing.config.get(field) for field in _PUSH_FIELDS):
        try:
            await _create_consumer(conn, stream, merged)
        except JetStreamError as error:
            if error.err_code != _CONSUMER_CREATE:
                raise
        else:
            return
    await _remake_consumer(conn, stream, declared, existing.ack_floor.stream_seq)


async def declare_wakeups(conn: NatsConnection, worker_target: str) -> None:
    """Declare the streams and the consumer of one target's doorbells."""
    await declare_streams(conn)
    await declare_consumer(conn, wakeup_consumer(worker_target), subjects.wakeup_filter(worker_target))


async def declare_commands(conn: NatsConnection) -> None:
    """Declare the streams and the consumer of the durable verbs."""
    await declare_streams(conn)
    await declare_consumer(conn, COMMANDS_CONSUMER, subjects.BRIDGE_COMMANDS, stream=subjects.ASK_STREAM)


async def declare_pmo(conn: NatsConnection) -> None:
    """Declare the streams and the consumer of delegating calls."""
    await declare_streams(conn)
    await declare_consumer(conn, PMO_CONSUMER, subjects.PMO_COMMANDS)


async def declare_ui_actions(conn: NatsConnection) -> None:
    """Declare the streams and the consumer of UI actions.

    A new consumer skips older actions: what a user pressed before there was a bridge is not done hours later.
    """
    await declare_streams(conn)
    await declare_consumer(
        conn,
        UI_ACTIONS_CONSUMER,
        subjects.UI_ACTIONS,
        stream=subjects.ASK_STREAM,
        ack_wait_seconds=_UI_ACTION_SECONDS,
        deliver_policy="new",
    )


async def declare_thread_turns(conn: NatsConnection) -> None:
    """Declare the streams and the consumer of `task` events of turns that work for threads.

    A new consumer skips older events: the safety net finds the turns they are about.
    """
    await declare_streams(conn)
    await declare_consumer(
        conn, THREAD_TURNS_CONSUMER, subjects.TASK_EVENTS, stream=subjects.EVT_STREAM, deliver_policy="new"
    )


async def declare_past_turns(conn: NatsConnection, since: datetime) -> int:
    """Make the consumer of `task` events since this moment anew; returns how many there are.

    It needs no acknowledgements, and goes when nobody reads it for a minute. Raises as `declare_streams` does.
    """
    await declare_streams(conn)
    try:
        await call_api(conn, f"CONSUMER.DELETE.{subjects.EVT_STREAM}.{PAST_TURNS_CONSUMER}", {})
    except JetStreamError as error:
        if error.status != _NOT_FOUND:
            raise
    declared: JsonObject = {
        "name": PAST_TURNS_CONSUMER,
        "filter_subject": subjects.TASK_EVENTS,
        "ack_policy": "none",
        "deliver_policy": "by_start_time",
        "opt_start_time": since.isoformat(),
        "replay_policy": "instant",
        "inactive_threshold": 60 * _SECOND,
        "mem_storage": True,
        "num_replicas": 1,
    }
    created = await _create_consumer(conn, subjects.EVT_STREAM, declared)
    return _Pending.model_validate(created).num_pending


async def purge_project(conn: NatsConnection, project: ProjectId, *, dry_run: bool = False) -> dict[str, int]:
    """Delete every stored message of the project; returns how many there were, by stream.

    Raises as `declare_streams` does.
    """
    counts: dict[str, int] = {}
    pattern = subjects.project_filter(project)
    for name in STREAMS:
        try:
            if dry_run:
                info = await call_api(conn, f"STREAM.INFO.{name}", {"subjects_filter": pattern})
                counts[name] = sum(_StreamInfo.model_validate(info).state.subjects.values())
            else:
                purged = await call_api(conn, f"STREAM.PURGE.{name}", {"filter": pattern})
                counts[name] = _Purged.model_validate(purged).purged
        except JetStreamError as error:
            if error.status != _NOT_FOUND:
                raise
            counts[name] = 0
    return counts


async def _consumer_info(conn: NatsConnection, stream: str, name: str) -> _ConsumerInfo | None:
    try:
        return _ConsumerInfo.model_validate(await call_api(conn, f"CONSUMER.INFO.{stream}.{name}", {}))
    except JetStreamError as error:
        if error.status == _NOT_FOUND:
            return None
        raise


async def _create_consumer(conn: NatsConnection, stream: str, config: JsonObject) -> JsonObject:
    # the subject with the filter in it is the one a bridge's user may publish to
    subject = f"CONSUMER.CREATE.{stream}.{config['name']}.{config['filter_subject']}"
    return await call_api(conn, subject, {"stream_name": stream, "config": config})


async def _remake_consumer(conn: NatsConnection, stream: str, declared: JsonObject, acknowledged: int) -> None:
    await call_api(conn, f"CONSUMER.DELETE.{stream}.{declared['name']}", {})
    start: JsonObject = {"deliver_policy": "by_start_sequence", "opt_start_seq": acknowledged + 1}
    await _create_consumer(conn, stream, {**declared, **start, "replay_policy": "instant"})


async def call_api(conn: NatsConnection, subject: str, body: JsonObject) -> JsonObject:
    """One call of the JetStream API; raises `JetStreamError` or `ServerUnavailable`."""
    payload = encode(body) if body else b""
    try:
        answer = await conn.request(f"$JS.API.{subject}", payload, timeout=_TIMEOUT_SECONDS)
        response = decode_object(answer.data)
        error = _ApiError.model_validate(response["error"]) if "error" in response else None
    except nats.errors.NoRespondersError:
        raise ServerUnavailable(f"NATS at {conn.shown} has no JetStream; start it with -js") from None
    except (*NATS_TROUBLE, BadRequest, ValidationError) as trouble:
        raise ServerUnavailable(f"JetStream at {conn.shown} did not answer {subject}: {words_of(trouble)}") from trouble
    if error is None:
        return response
    if error.err_code == _NO_STORAGE:
        raise NoRoom(f"JetStream at {conn.shown}: {error.description} (error {error.err_code})")
    if error.code == _UNAVAILABLE:
        raise ServerUnavailable(f"JetStream at {conn.shown}: {error.description} (error {error.err_code})")
    refusal = f"JetStream refuses {subject}: {error.description} (error {error.err_code})"
    raise JetStreamError(refusal, error.code, error.err_code)
