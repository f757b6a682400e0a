"""A request that ends before its stream does leaves no connection open, in any form and with either reader."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

from tests.activities.models.asking import LIMITS, question
from tests.activities.models.http_stub import HttpReply
from tests.activities.models.provider_stub import sse
from tests.activities.models.test_answers import EVENTS, MODELS, RawStub, chunk, claude, gemini, model_of_stub, said

FAULT = {"error": {"message": "no", "code": 500}}
BEGUN: dict[str, list[bytes]] = {
    "openai": [chunk({"content": "x"})],
    "hosted_vllm": [chunk({"content": "x"})],
    "anthropic": [*claude(said("x"), finish=None).pieces],
    "gemini": [*gemini({"text": "x"}, finish=None).pieces],
}
STOPS = [
    *((form, [*begun, sse({"type": "error", **FAULT}, "error")]) for form, begun in BEGUN.items() if form != "gemini"),
    *((form, [sse({"type": "error", **FAULT}, "error")]) for form in BEGUN if form != "gemini"),
    ("gemini", [*BEGUN["gemini"], sse({"error": {"message": "no"}})]),
    ("gemini", [sse({"candidates": 7})]),  # litellm reads no further, and closes nothing
]
"""Streams with an event that ends the attempt."""
GOES_ON = [
    *BEGUN.items(),
    *((form, [*begun, b"data: [\n\n"]) for form, begun in BEGUN.items()),
    ("gemini", [*gemini({"text": "x"}).pieces]),
    ("gemini", [sse(FAULT)]),
]
"""Streams of which more may come; bytes may stop at what is not JSON."""


class OpenStub(RawStub):
    """Sends a reply's pieces and leaves the body open; knows when the client has closed the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.closed = asyncio.Event(), asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            head = "".join(f"{name}: {value}\r\n" for name, value in self.replies[0].headers.items())
            writer.write(f"HTTP/1.1 200 Stub\r\n{head}transfer-encoding: chunked\r\n\r\n".encode())
            for piece in self.replies[0].pieces:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            self.sent.set()
            while await reader.read(65_536):
                pass
        self.closed.set()
        writer.close()


async def test_a_request_that_ends_closes_its_stream(key_file: Path, reader: str) -> None:
    """Whether an event of the stream ends it, or whoever asked gives it up."""
    limits = replace(LIMITS, model_attempts=1)
    async with OpenStub() as stub:
        model = model_of_stub(stub, key_file, reader)
        try:
            for form, pieces in [*STOPS, *GOES_ON]:
                stub.replies = [HttpReply(200, EVENTS, pieces)]
                stub.sent.clear()
                stub.closed.clear()
                asking = asyncio.create_task(question(model, MODELS[form], limits=limits))
                async with asyncio.timeout(60):
                    if (form, pieces) in GOES_ON:
                        await stub.sent.wait()
                        asking.cancel()
                        await asyncio.wait([asking])
                    else:
                        assert (await asking).failed().code != "model_timeout", (form, pieces)
                async with asyncio.timeout(25):
                    await stub.closed.wait()
        finally:
            await model.close()
