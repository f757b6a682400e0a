"""The checks of `turnstile doctor` on storage: the disks of embedded servers, and how NATS stores the streams.

Servers of one's own have their disks elsewhere: of those, the lines of PostgreSQL and of the streams say whether they
store what they are given. When NATS writes to its disk is known from its monitoring address alone
(`[nats].monitoring_url`; of a cluster all, separated by commas): clients cannot ask for it.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

from pydantic import Field, ValidationError

from turnstile.doctor.checks import SECONDS, Check
from turnstile.embedded import Endpoints
from turnstile.embedded.files import FULL_MB, LOW_MB, Disk, disks_of
from turnstile.schema.amounts import amount
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import ConfigError, ServerUnavailable
from turnstile.schema.wire import subjects
from turnstile.settings import Settings
from turnstile.transport.connection import NatsConnection
from turnstile.transport.streams import STREAMS, JetStreamError, call_api


def check_disks(homes: Sequence[Path]) -> list[Check]:
    """A line for each file system that these data directories of servers are on."""
    return [_line(disk) for disk in disks_of(*homes)]


def _line(disk: Disk) -> Check:
    name = f"disk of {disk.path}"
    if disk.trouble:
        hint = "make room: `turnstile up` then restarts the servers that have ended or refuse to write"
        return Check(name=name, status="fail", says=disk.trouble, hint=hint)
    if disk.free_mb < LOW_MB:
        hint = f"make room: below {FULL_MB} MB servers refuse to write, or end, until there is room"
        return Check(name=name, status="warn", says=f"{disk.free_mb} MB are free", hint=hint)
    return Check(name=name, status="ok", says=f"{disk.free_mb} MB are free")


_NAME = "NATS storage"
_NEARLY = 0.9
"""The share of a stream's bytes from which on it is nearly full."""
_LOST = "commands to tools and bridges, and events, that it had acknowledged in this time"


class _JetStream(Tolerant):
    sync_interval: int = 0
    """In nanoseconds."""
    sync_always: bool = False


class _Jsz(Tolerant):
    config: _JetStream = _JetStream()


class _Peer(Tolerant):
    name: str = ""
    current: bool = True
    offline: bool = False


class _Cluster(Tolerant):
    replicas: list[_Peer] = Field(default_factory=list[_Peer])


class _StreamConfig(Tolerant):
    num_replicas: int = 1
    storage: str = "file"
    max_bytes: int = 0


class _StreamState(Tolerant):
    bytes: int = 0


class _Stream(Tolerant):
    config: _StreamConfig
    state: _StreamState = _StreamState()
    cluster: _Cluster = _Cluster()


async def check_storage(settings: Settings, endpoints: Endpoints, conn: NatsConnection) -> list[Check]:
    """Lines about the servers' disks and the streams' replicas."""
    embedded = None if settings.nats.servers else endpoints.nats_monitoring_url
    urls = [part.strip() for part in (settings.nats.monitoring_url or embedded or "").split(",")]
    return [
        *[await _written(url, f"{_NAME} {url}" if urls[1:] else _NAME) for url in urls],
        *[await _replicas(settings, conn, stream) for stream in STREAMS],
    ]


async def _written(url: str, name: str) -> Check:
    if not url:
        hint = "set [nats].monitoring_url to its monitoring address, such as http://nats:8222"
        says = "how often it writes to its disk is not known, so a power failure may lose messages"
        return Check(name=name, status="warn", says=says, hint=hint)
    try:
        settings = await asyncio.to_thread(_ask, url)
    except (OSError, ValueError) as error:
        says = f"{url}/jsz does not answer ({type(error).__name__}), so how much a power failure may lose is not known"
        return Check(name=name, status="warn", says=says, hint="see [nats].monitoring_url and `http:` of the server")
    if settings.config.sync_always:
        return Check(
            name=name,
            status="ok",
            says="it writes each message of a stream to its disk before it acknowledges it: a power failure loses none",
        )
    seconds = settings.config.sync_interval / 1e9
    says = f"it writes to its disk every {amount(seconds)} s: a power failure may lose {_LOST}"
    hint = "set `jetstream { sync_interval: always }` in its configuration (`turnstile docs operations`)"
    return Check(name=name, status="warn", says=says, hint=hint)


def _ask(url: str) -> _Jsz:
    with urlopen(f"{url.rstrip('/')}/jsz", timeout=SECONDS / 2) as answer:  # noqa: S310 -- the operator's own address
        return _Jsz.model_validate_json(answer.read(1 << 20))


async def _replicas(settings: Settings, conn: NatsConnection, stream: str) -> Check:
    """Whether a stream is stored as the settings say, and all servers that have it are up to date."""
    name, section = f"storage of {stream}", settings.nats
    try:
        stream_info = _Stream.model_validate(await call_api(conn, f"STREAM.INFO.{stream}", {}))
    except (JetStreamError, ServerUnavailable, ConfigError, ValidationError):
        return Check(name=name, status="ok", says="this user may not ask, or the stream's own line says why")
    has, behind = (
        stream_info.config,
        [replica.name for replica in stream_info.cluster.replicas if replica.offline or not replica.current],
    )
    kept = "in files" if has.storage == "file" else "in memory, which a restart of its servers empties"
    says = f"{kept}, {has.num_replicas} {'replica' if has.num_replicas == 1 else 'replicas'}"
    if behind:
        hint = "the loss of one more server may stop the stream: check that they run and reach each other"
        return Check(name=name, status="warn", says=f"{says}; not up to date: {', '.join(behind)}", hint=hint)
    if has.num_replicas < section.replicas:
        says = f"{says}, and [nats].replicas is {section.replicas}"
        return Check(name=name, status="warn", says=says, hint="run `turnstile migrate`, which raises it")
    if has.storage != section.storage:
        says = f"{says}, and [nats].storage is {section.storage}"
        hint = "NATS cannot change it: stop all processes, delete the stream, and run `turnstile migrate`"
        return Check(name=name, status="warn", says=says, hint=hint)
    setting = "max_events_mb" if stream == subjects.EVT_STREAM else "max_commands_mb"
    bound = section.max_events_mb if stream == subjects.EVT_STREAM else section.max_commands_mb
    if bound and has.max_bytes <= 0:
        says = f"{says}, {stream_info.state.bytes >> 20} MB without a bound, and [nats].{setting} is {bound}"
        hint = f"set [nats].{setting} above that and within what the server may store; then run `turnstile migrate`"
        return Check(name=name, status="warn", says=says, hint=hint)
    if has.max_bytes > 0 and stream_info.state.bytes > has.max_bytes * _NEARLY:
        full = "it refuses new messages" if stream == subjects.ASK_STREAM else "it drops its oldest messages"
        says = f"{says}, {stream_info.state.bytes >> 20} of {has.max_bytes >> 20} MB: {full}"
        hint = f"raise [nats].{setting}, then run `turnstile migrate`; `nats stream subjects` shows whose they are"
        return Check(name=name, status="warn", says=says, hint=hint)
    more = f" ([nats].replicas is {section.replicas}; it is never lowered by itself)"
    return Check(name=name, status="ok", says=says + (more if has.num_replicas > section.replicas else ""))
