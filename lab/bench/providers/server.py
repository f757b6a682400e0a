"""A provider of our own (`python -m`): speaks the three forms at the pace that a prompt asks for, on a free port.

It prints `provider listens at URL`. Chunks are sent when they are due: a client that reads slowly delays only itself.
"""

import asyncio
import contextlib
import time

from lab.bench.providers.forms import asked, events, form_of

LISTENS = "provider listens at "
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while (head := await reader.readuntil(b"\r\n\r\n")) != b"":
            lines = head.decode().split("\r\n")
            length = next(int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length:"))
            await _answer(writer, lines[0].split(" ")[1], await reader.readexactly(length))
    writer.close()


async def _answer(writer: asyncio.StreamWriter, path: str, body: bytes) -> None:
    what, clock = asked(body), asyncio.get_running_loop().time
    writer.write(_HEAD)
    due = clock()
    for event in events(form_of(path), what, time.time_ns):
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        if writer.transport.get_write_buffer_size() > 0:
            await writer.drain()
        due += 1 / what.rate
        await asyncio.sleep(due - clock())
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def main() -> None:
    """Serve until the process ends."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    host, port = server.sockets[0].getsockname()
    print(f"{LISTENS}http://{host}:{port}", flush=True)  # noqa: T201 -- the bench reads it
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
