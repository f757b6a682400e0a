"""Servers of local models: started when asked, one for all who ask, again after a death, gone with their parent."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.local import weights_or_skip
from turnstile.embedded.ports import free_port
from turnstile.embedded.server_errors import ServerNotRunning
from turnstile.local.model_servers import LocalServers, is_healthy, served_elsewhere
from turnstile.schema.errors import ModelError
from turnstile.settings import LocalSettings

SMALL = {"slots": 1, "context_tokens": 256}


@pytest.fixture
async def weights() -> Path:
    """The real ones."""
    return await weights_or_skip()


@pytest.fixture
async def servers(weights: Path, tmp_path: Path) -> AsyncIterator[LocalServers]:
    """Servers of the same weights under two names."""
    names = {"one": weights, "two": weights, "broken": tmp_path / "broken.gguf"}
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and nothing else")
    running = LocalServers(tmp_path, LocalSettings(**SMALL, weights=names))
    yield running
    await running.close()


def gone(pid: int) -> bool:
    """Whether no such process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_each_model_has_a_process_of_its_own(servers: LocalServers) -> None:
    with pytest.raises(ServerNotRunning):
        servers.pid("one")
    one, again, two = await asyncio.gather(*(servers.address(name) for name in ("one", "one", "two")))
    assert one == again != two
    pids = {servers.pid("one"), servers.pid("two")}
    assert len(pids) == 2
    await servers.close()
    assert all(map(gone, pids))


async def test_one_that_dies_is_started_again_by_itself_on_its_port(servers: LocalServers) -> None:
    before = await servers.address("one")
    first = servers.pid("one")
    os.kill(first, signal.SIGKILL)

    async def other() -> bool:
        try:
            return servers.pid("one") != first and await is_healthy(int(before.rpartition(":")[2].split("/")[0]))
        except ServerNotRunning:
            return False

    await until(other, 30, "the server runs again")
    assert await servers.address("one") == before


async def test_weights_that_do_not_load_are_an_error_with_the_log(servers: LocalServers) -> None:
    told = r"(?s)local/broken: its server did not start: it exited .*failed to load model"  # its last words vary
    with pytest.raises(ModelError, match=told) as failed:
        await servers.address("broken")
    assert (failed.value.code, failed.value.retryable) == ("model_connection", True)
    with pytest.raises(ModelError, match="there are no weights 'three'"):
        await servers.address("three")


_PARENT = """
import asyncio, json, sys
from pathlib import Path
from turnstile.local.model_servers import LocalServers
from turnstile.settings import LocalSettings
async def main():
    settings = LocalSettings(slots=1, context_tokens=256, weights={"one": Path(sys.argv[2])})
    servers = LocalServers(Path(sys.argv[1]), settings)
    await servers.address("one")
    print(servers.pid("one"), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_it_ends_with_its_parent_however_that_ends(weights: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-c", _PARENT, str(tmp_path), str(weights))
    parent = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 60))
    parent.kill()
    await parent.wait()

    async def ended() -> bool:
        return gone(pid)

    await until(ended, 25, "the server ended")


async def test_a_model_served_by_itself_is_where_workers_look(weights: Path) -> None:
    port = free_port()
    command = ("serve", "--gguf", str(weights), "--model", "mine", "--port", str(port))
    main = "import sys; from turnstile.cli import main; sys.exit(main())"
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", main, "model", *command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert server.stdout is not None
    try:
        said = await asyncio.wait_for(server.stdout.readline(), 60)
        assert said.decode().startswith(f"local/mine at http://127.0.0.1:{port}/v1, loaded in ")
        assert await is_healthy(port)
    finally:
        server.terminate()
        await server.wait()
    assert await served_elsewhere("mine") == "http://127.0.0.1:8180/v1"
