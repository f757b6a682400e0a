"""The bridge's verbs over request/reply, discoverable as the NATS micro service `turnstile` (protocol §5, §6).

Each request is a task of its own. At most `concurrency` run; four times as many of one project may wait, and further
ones get the status `busy`. All projects together may have twice as many waiting, so one project cannot fill the queue.
A request whose reply subject is not a reply inbox is dropped without running: its reply could be taken for an event.
Draining answers every request accepted before it. Costs one subscription for all verbs and nine for discovery.
"""

import asyncio
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from pydantic import BaseModel, ValidationError

from turnstile.runtime.telemetry import SILENT, Meter, Metric
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Limited, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import ChannelId, ProjectId
from turnstile.schema.json_reading import read_json_object
from turnstile.schema.profiles import NOT_SUPPORTED
from turnstile.schema.validation import describe_faults, has_fault
from turnstile.schema.verbs import REPORT, VERBS, verb_named
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.limits import Admission, Maker
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.json_messages import encode, headers_of
from turnstile.transport.limited_log import LimitedLog

SERVICE = "turnstile"
REPLY_INBOX = re.compile(r"(_INBOX[A-Za-z0-9_-]*|_R_)\.[A-Za-z0-9_.-]+\Z")
_WAITING_PER_SLOT = 4
_SHOWN_FAULTS = 5
_PROJECT_TOKEN = 2
_PROJECTS = 2

logger = logging.getLogger(__name__)
Model = TypeVar("Model", bound=BaseModel)


Kind = Literal["PING", "INFO", "STATS"]
KINDS: tuple[Kind, ...] = ("PING", "INFO", "STATS")


@dataclass(slots=True)
class EndpointStats:
    """Counts of one endpoint since the service started."""

    num_requests: int = 0
    num_errors: int = 0
    processing_nanoseconds: int = 0
    last_error: str = ""

    def count(self, nanoseconds: int, error: str) -> None:
        """Count a request, its duration, and its error code if it failed."""
        self.num_requests += 1
        self.processing_nanoseconds += nanoseconds
        if error:
            self.num_errors += 1
            self.last_error = error


@dataclass(frozen=True, slots=True)
class ServiceCard:
    """One instance of a service, its endpoints and their counts. `endpoints` maps a name to its subject."""

    name: str
    id: str
    version: str
    description: str
    queue: str
    endpoints: dict[str, str]
    stats: dict[str, EndpointStats]
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def subjects(self, kind: Kind) -> tuple[str, str, str]:
        """The subjects of this kind of request: for all services, for this service, for this instance."""
        return (f"$SRV.{kind}", f"$SRV.{kind}.{self.name}", f"$SRV.{kind}.{self.name}.{self.id}")

    def answer(self, kind: Kind) -> JsonObject:
        """The reply to this kind of request."""
        reply: JsonObject = {
            "type": f"io.nats.micro.v1.{kind.lower()}_response",
            "name": self.name,
            "id": self.id,
            "version": self.version,
            "metadata": {},
        }
        if kind == "INFO":
            reply["description"] = self.description
            reply["endpoints"] = [{**self._endpoint(name), "metadata": {}} for name in self.endpoints]
        if kind == "STATS":
            reply["started"] = self.started.isoformat().replace("+00:00", "Z")
            reply["endpoints"] = [{**self._endpoint(name), **self._counts(name)} for name in self.endpoints]
        return reply

    def _endpoint(self, name: str) -> JsonObject:
        return {"name": name, "subject": self.endpoints[name], "queue_group": self.queue}

    def _counts(self, name: str) -> JsonObject:
        stats = self.stats[name]
        return {
            "num_requests": stats.num_requests,
            "num_errors": stats.num_errors,
            "last_error": stats.last_error,
            "processing_time": stats.processing_nanoseconds,
            "average_processing_time": stats.processing_nanoseconds // max(1, stats.num_requests),
        }


class RequestPayload:
    """The JSON object of a request: decoded when it is first read; the result of the last parse is kept."""

    def __init__(self, content: bytes | JsonObject, *, mended: bool = False) -> None:
        self._given = content
        self._mended = mended
        self._parsed: BaseModel | None = None

    def read(self) -> JsonObject:
        """The object; raises `BadRequest` if it is none."""
        if isinstance(self._given, bytes):
            self._given = read_json_object(self._given, mended=self._mended)
        return self._given

    def parse(self, model: type[Model]) -> Model:
        """As `VerbRequest.parse`."""
        if isinstance(self._parsed, model):
            return self._parsed
        value = self.read()
        try:
            self._parsed = parsed = model.model_validate(value)
        except ValidationError as error:
            faults = describe_faults(error, model, whole="payload", most=_SHOWN_FAULTS)
            if has_fault(error, NOT_SUPPORTED):
                raise Refused(NOT_SUPPORTED, faults) from None
            raise BadRequest(faults) from None
        return parsed


@dataclass(frozen=True, slots=True)
class VerbRequest:
    """A request for a verb; project and channel are the subject's."""

    verb: str
    project_id: ProjectId
    channel_id: ChannelId
    payload: RequestPayload
    headers: dict[str, str]
    source: Literal["request", "command"]
    command_id: str | None = None
    """The same for every delivery of one durable command, different for any other; a verb's idempotency key."""
    caller: Caller | None = None
    """Who asks, if the subject names them; `headers` then name no other sender."""
    wait_seconds: float = 0.0
    """Seconds until the project is within its rate; while it is above 0, only a repeat of a request is answered."""

    def parse(self, model: type[Model]) -> Model:
        """The payload as `model`; raises `BadRequest` naming the fields at fault, without their content."""
        return self.payload.parse(model)

    def named_caller(self) -> Caller:
        """The caller; raises `BadRequest` if the subject names none."""
        if self.caller is None:
            raise BadRequest(f"ask req.sys.bridge.{self.verb}.{{principal}}: the subject's end says who you are")
        return self.caller

    def operator(self) -> Caller:
        """The caller, who operates; raises `Refused` (forbidden), and `BadRequest` if the subject names nobody."""
        caller = self.named_caller()
        if not caller.operates:
            raise Refused("forbidden", f"operators alone may: ask req.sys.bridge.{self.verb}.operator.{{principal}}")
        return caller

    def maker(self, limits: Admission) -> Maker:
        """Who makes what is asked for, and how much of it one caller may have."""
        return Maker("" if self.caller is None else self.caller.name, limits)


VerbHandler: TypeAlias = Callable[[VerbRequest], Awaitable[BaseModel]]


def handlers_of(*owners: object) -> dict[str, VerbHandler]:
    """The handlers by verb: of each declared verb the method of its name, with `_` for `.`, that an owner has."""
    handlers: dict[str, VerbHandler] = {}
    for verb in VERBS:
        named = (getattr(owner, verb.name.replace(".", "_"), None) for owner in owners)
        for handler in filter(None, named):
            if verb.name in handlers:
                raise TypeError(f"two objects handle {verb.name}")
            handlers[verb.name] = handler
    return handlers


@dataclass(frozen=True, slots=True)
class VerbAnswer:
    """A verb's reply; `server_trouble` if the same request may succeed later."""

    reply: JsonObject
    server_trouble: bool = False

    @property
    def failure(self) -> str:
        """The error code of a reply that is the bridge's fault, else empty."""
        return str(self.reply.get("error_code")) if self.reply.get("status") == "error" else ""

    @property
    def is_bug(self) -> bool:
        """Whether the verb failed for an unknown reason, so it is not known whether it would fail again."""
        return self.failure == TurnstileError.code


def rejected(error: TurnstileError) -> JsonObject:
    """The reply for a refused request: its error code and message."""
    if isinstance(error, Limited):
        return {
            "status": "busy",
            "error_code": error.code,
            "error": str(error),
            **({} if error.retry_after is None else {"retry_after_seconds": error.retry_after}),
        }
    return {"status": "rejected", "error_code": error.code, "error": str(error)}


async def run_verb(
    verbs: Mapping[str, VerbHandler], request: VerbRequest, unavailable: tuple[type[Exception], ...] = ()
) -> VerbAnswer:
    """Run a verb and return its reply, also for any exception but cancellation (protocol §6).

    `unavailable` are further exceptions that mean that a server is away. An unexpected exception is logged, and the
    reply does not contain its text.
    """
    try:
        handler = verbs.get(request.verb)
        if handler is None:
            return VerbAnswer(
                rejected(BadRequest(f"no such verb: {request.verb}; there are {', '.join(sorted(verbs))}"))
            )
        reply = await handler(request)
        return VerbAnswer(reply.model_dump(mode="json"))
    except ServerUnavailable as error:
        return VerbAnswer({"status": "error", "error_code": error.code, "error": str(error)}, server_trouble=True)
    except TurnstileError as error:
        return VerbAnswer(rejected(error))
    except unavailable as error:
        logger.warning("verb %s: a server is away: %s", request.verb, type(error).__name__)
        message = "a server the bridge needs does not answer; try again"
        return VerbAnswer(
            {"status": "error", "error_code": ServerUnavailable.code, "error": message}, server_trouble=True
        )
    except Exception:  # a verb's bug must not end the bridge, and clients must not see the exception's text
        logger.exception("verb %s failed", request.verb)
        return VerbAnswer(
            {"status": "error", "error_code": TurnstileError.code, "error": "the bridge failed; see its log"}
        )


def encode_reply(reply: JsonObject, limit: int) -> bytes:
    """The reply as JSON, or an error reply if it has more than `limit` bytes."""
    data = encode(reply)
    if len(data) <= limit:
        return data
    message = f"the reply has {len(data)} bytes, at most {limit} can be sent; ask for less"
    error: JsonObject = {"status": "error", "error_code": "result_too_large", "error": message}
    return encode({**error, "request_id": reply["request_id"]} if "request_id" in reply else error)


def read_request(msg: Msg, source: Literal["request", "command"], payload: bytes | JsonObject) -> VerbRequest:
    """The request in a message; raises `BadRequest` if subject and headers name different things (protocol §5)."""
    subject = subjects.parse(msg.subject)
    sent = headers_of(msg)
    named = ((headers.PROJECT_ID, subject.project_id), (headers.CHANNEL_ID, subject.channel_id))
    for name, value in named:
        if sent.get(name, value) != value:
            raise BadRequest(f"{name} differs from the subject's {value}")
    verb, caller = _verb_and_caller(subject.rest[2:])
    if caller is not None:
        sent = {**sent, headers.SENDER: caller.name}
    read = RequestPayload(payload, mended=keeps_effects(verb))
    return VerbRequest(verb, subject.project_id, subject.channel_id, read, sent, source, caller=caller)


def keeps_effects(verb: str) -> bool:
    """Whether the verb says what was done already: numbers that JSON has not are null then, and no refusal."""
    return verb == REPORT.name


def _verb_and_caller(tokens: Sequence[str]) -> tuple[str, Caller | None]:
    """The verb, of one or two tokens, and the caller whom the tokens behind it name."""
    for size in (1, 2):
        declared = verb_named(".".join(tokens[:size]))
        if declared is not None and declared.caller != "none" and len(tokens) > size:
            return declared.name, Caller.read(tokens[size:])
    return ".".join(tokens), None


def _endpoint(verb: str) -> str:
    declared = verb_named(verb)
    return f"{verb}.>" if declared is not None and declared.caller == "must" else verb


class VerbService:
    """Serves `verbs` until stopped. `start` subscribes; `stop` answers what was accepted and returns."""

    def __init__(
        self,
        conn: NatsConnection,
        verbs: Mapping[str, VerbHandler],
        *,
        concurrency: int = 64,
        unavailable: tuple[type[Exception], ...] = (),
        meter: Meter = SILENT.meter,
        version: str = "0.1.0",
    ) -> None:
        self.dropped = 0
        self._conn = conn
        self._verbs = verbs
        self._slots = asyncio.Semaphore(concurrency)
        self._most = concurrency * (1 + _WAITING_PER_SLOT)
        self._unavailable = unavailable
        self._tasks: set[asyncio.Task[None]] = set()
        self._meter = meter
        self._of_project: Counter[str] = Counter()
        self._subscriptions: list[Subscription] = []
        self._log = LimitedLog(logger)
        self.card = ServiceCard(
            name=SERVICE,
            id=uuid.uuid4().hex,
            version=version,
            description="Turnstile's bridge: verbs of the agent-turn protocol",
            queue=SERVICE,
            endpoints={verb: f"{subjects.BRIDGE_REQUESTS.removesuffix('>')}{_endpoint(verb)}" for verb in verbs},
            stats={verb: EndpointStats() for verb in verbs},
        )

    async def start(self) -> None:
        """Subscribe. If the server refuses a subject, `NatsConnection.verify` raises."""
        verbs = await self._conn.subscribe(subjects.BRIDGE_REQUESTS, self._on_request, queue=SERVICE)
        self._subscriptions.append(verbs)
        for kind in KINDS:
            for subject in self.card.subjects(kind):
                self._subscriptions.append(await self._conn.subscribe(subject, self._discovery(kind)))

    async def stop(self, timeout: float = 30.0) -> None:
        """Accept no more requests, answer the accepted ones within `timeout` seconds, then drain the connection."""
        draining = (self._conn.drain_subscription(subscription) for subscription in self._subscriptions)
        await asyncio.gather(*draining)
        self._subscriptions.clear()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout)
        for task in self._tasks:
            task.cancel()

    def _discovery(self, kind: Kind) -> Callable[[Msg], Awaitable[None]]:
        async def on_question(msg: Msg) -> None:
            if REPLY_INBOX.match(msg.reply):
                await self._send(msg.reply, encode(self.card.answer(kind)))

        return on_question

    async def _on_request(self, msg: Msg) -> None:
        if not REPLY_INBOX.match(msg.reply):
            self.dropped += 1
            self._log.warning("reply", "a request on %s has no proper reply inbox and is dropped", msg.subject)
            return
        project = msg.subject.split(".")[_PROJECT_TOKEN]
        if max(self._of_project[project], len(self._tasks) // _PROJECTS) >= self._most:
            self._meter.count(Metric.LIMITED, limit="overloaded")
            message = f"{len(self._tasks)} requests are waiting; try again"
            await self._send(msg.reply, encode({"status": "busy", "error_code": "overloaded", "error": message}))
        else:
            task = asyncio.create_task(self._serve(msg))
            self._tasks.add(task)
            self._of_project[project] += 1
            task.add_done_callback(partial(self._served, project))

    def _served(self, project: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._of_project[project] -= 1
        if not self._of_project[project]:
            del self._of_project[project]

    async def _serve(self, msg: Msg) -> None:
        async with self._slots:
            started = time.perf_counter_ns()
            try:
                request = read_request(msg, "request", msg.data)
            except BadRequest as error:
                await self._send(msg.reply, encode(rejected(error)))
                return
            answer = await run_verb(self._verbs, request, self._unavailable)
            if stats := self.card.stats.get(request.verb):
                stats.count(time.perf_counter_ns() - started, answer.failure)
            await self._send(msg.reply, encode_reply(answer.reply, self._conn.size_limit))

    async def _send(self, reply: str, data: bytes) -> None:
        try:
            await self._conn.send(reply, data)
        except NATS_TROUBLE as error:  # the caller runs into its timeout
            self._log.warning("send", "a reply could not be sent: %s", error)
