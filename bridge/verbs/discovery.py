"""The replies of a NATS micro service to `$SRV.PING`, `INFO` and `STATS` as JSON (ADR-32). Pure; no I/O."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from turnstile.schema.base import JsonObject

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
