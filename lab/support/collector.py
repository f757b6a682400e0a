"""An OpenTelemetry collector that keeps what it is sent: OTLP over HTTP on loopback."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class Seen:
    """A span as it arrived."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent: str
    attributes: dict[str, object]
    started: int
    ended: int
    failed: bool
    kind: str


@dataclass
class Collector:
    """Where it listens, and what it has heard."""

    url: str = ""
    spans: list[Seen] = field(default_factory=list[Seen])
    bodies: list[bytes] = field(default_factory=list[bytes])

    def of_trace(self, trace_id: str) -> list[Seen]:
        """The spans of one trace, in the order of their begin."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.started)

    def take(self, body: bytes) -> None:
        """One export."""
        self.bodies.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            of_process = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            service = of_process["service.name"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes = {attribute.key: _value(attribute.value) for attribute in span.attributes}
                    self.spans.append(
                        Seen(
                            service,
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            attributes,
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.status.code == span.status.STATUS_CODE_ERROR,
                            span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                        )
                    )


def _value(value: AnyValue) -> object:
    if value.HasField("array_value"):
        return [_value(v) for v in value.array_value.values]
    return getattr(value, value.WhichOneof("value") or "string_value")


@asynccontextmanager
async def collecting() -> AsyncGenerator[Collector]:
    """A collector that listens."""
    collector = Collector()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                assert line.startswith(b"POST /v1/traces "), line
                length = 0
                while (header := await reader.readline()).strip():
                    name, _, value = header.decode().partition(":")
                    if name.lower() == "content-length":
                        length = int(value)
                collector.take(await reader.readexactly(length))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    collector.url = f"http://{host}:{port}"
    try:
        yield collector
    finally:
        server.close()
