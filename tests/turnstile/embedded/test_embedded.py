"""Real servers: what starts, stops; whoever dies, nothing is left running; the data and the ports stay."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from turnstile.embedded import EmbeddedServers, Endpoints, ServerName, find_endpoints, read_endpoints
from turnstile.embedded.endpoints import write_endpoints
from turnstile.embedded.ports import Moved, choose_ports
from turnstile.embedded.postgres_server import find_postgres_program
from turnstile.embedded.protocol import StartProcess
from turnstile.embedded.server import is_listening
from turnstile.embedded.server_errors import (
    DataDirectoryHeld,
    DataDirectoryUnusable,
    EmbeddedError,
    ServerNotRunning,
    ServerStartFailed,
)
from turnstile.embedded.supervisor import Supervisor, clean_environment
from turnstile.schema.errors import ConfigError
from turnstile.transport.connection import connect

ALL: tuple[ServerName, ...] = ("postgres", "nats", "temporal")

PARENT = """
import asyncio, json, sys
from pathlib import Path
from turnstile.embedded import EmbeddedServers

async def main():
    async with EmbeddedServers(Path(sys.argv[1])) as servers:
        print(json.dumps({name: servers.pid(name) for name in servers.embedded}), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def processes_of(data: Path) -> list[str]:
    """Every process but this one that names the data directory: the warden and the three servers."""
    listed = subprocess.run(["ps", "-ww", "-eo", "pid=,stat=,args="], capture_output=True, text=True, check=True)
    own = str(os.getpid())
    rows = (line.split(None, 2) for line in listed.stdout.splitlines())
    return [" ".join(row) for row in rows if str(data) in row[2] and not row[1].startswith("Z") and row[0] != own]


async def until(condition: Callable[[], bool], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while True:
        if condition():
            return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def query(url: str, sql: str) -> str:
    """The single value it returns; raises `CalledProcessError`."""
    psql = find_postgres_program("psql")
    command = [str(psql), "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-At", "-c", sql, url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].split("/")[0])


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServers]:
    data = tmp_path_factory.mktemp("shared") / ".turnstile"
    async with EmbeddedServers(data) as running:
        yield running


def data_of(servers: EmbeddedServers) -> Path:
    return servers._data


async def test_all_three_answer(servers: EmbeddedServers) -> None:
    endpoints = servers.endpoints
    facts = query(
        endpoints.database_url,
        "SELECT concat_ws(' ', datname, current_user, current_setting('server_encoding'), datlocale)"
        " FROM pg_database WHERE datname = current_database()",
    )
    assert facts == "turnstile turnstile UTF8 C.UTF-8"
    assert servers.embedded == ALL
    assert endpoints.web_ui_url is not None
    for url in (endpoints.nats_url, endpoints.temporal_address, endpoints.web_ui_url):
        assert await is_listening(urlsplit(url if "//" in url else f"//{url}").hostname or "", port_of(url))


async def test_a_wrong_password_is_refused(servers: EmbeddedServers) -> None:
    address = servers.endpoints.database_url.partition("@")[2]
    with pytest.raises(subprocess.CalledProcessError) as refused:
        query(f"postgresql://turnstile:guessed@{address}", "SELECT 1")
    assert "password authentication failed" in refused.value.stderr


async def test_files_are_private_and_endpoints_are_found(
    servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of(servers)
    for name in ("endpoints.json", "postgres.password", "nats.token", "nats.conf", "lock", "logs/postgres.log"):
        assert (data / name).stat().st_mode & 0o077 == 0
    assert read_endpoints(data) == servers.endpoints
    below = data.parent / "some" / "where"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_endpoints() == servers.endpoints
    assert find_endpoints(data) == servers.endpoints


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "evil.example"])
async def test_no_page_reaches_temporal_s_http_api(servers: EmbeddedServers, host: str) -> None:
    """What a browser would send for a page of any origin, also one that had its name rebound to this machine."""
    found = find_endpoints(data_of(servers))
    assert found is not None
    port = json.loads((data_of(servers) / "ports.json").read_text())["temporal_http"]
    path = f"/api/v1/namespaces/{found.temporal_namespace}/workflows/x/terminate"
    headers = {"host": host.format(port=port), "origin": "https://evil.example", "content-type": "text/plain"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as web:
        assert (await web.post(path, content="{}", headers=headers)).status_code == 403
        assert (await web.get(path.removesuffix("/x/terminate"), headers=headers)).status_code == 403


async def test_nats_answers_nobody_without_its_token(servers: EmbeddedServers) -> None:
    """Its address, which has it, is shown and logged without."""
    data = data_of(servers)
    token = (data / "nats.token").read_text()
    url, port = servers.endpoints.nats_url, port_of(servers.endpoints.nats_url)
    assert url == f"nats://{token}@127.0.0.1:{port}"
    for guess in (f"nats://127.0.0.1:{port}", f"nats://{'0' * 32}@127.0.0.1:{port}"):
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1") as refused:
            await connect(guess, name="stranger", on_wait=lambda _: None)
        assert "0000" not in str(refused.value)
    conn = await connect(url, name="own")
    await conn.js.account_info()
    assert token not in conn.shown
    await conn.close()
    logs = [path.read_text() for path in (data / "logs").iterdir()]
    assert not any(token in log for log in logs)


async def test_no_page_reaches_temporal_s_web_ui(servers: EmbeddedServers) -> None:
    """It answers to any name, so its address is one that cannot be known: nothing is where pages would look."""
    found = servers.endpoints.web_ui_url
    assert found is not None
    host, port = urlsplit(found).hostname or "", port_of(found)
    assert host.startswith("127.")
    assert not await is_listening("127.0.0.1", port)
    async with httpx.AsyncClient() as web:
        assert (await web.get(f"{found}/api/v1/namespaces")).status_code == 200


async def test_no_page_reaches_nats_s_figures(servers: EmbeddedServers) -> None:
    found = find_endpoints(data_of(servers))
    assert found is not None
    assert found.nats_monitoring_url is not None
    root = found.nats_monitoring_url.rpartition("/")[0]
    async with httpx.AsyncClient() as web:
        assert (await web.get(f"{found.nats_monitoring_url}/jsz")).json()["config"]["sync_always"]
        for path in ("", "/", "/varz", "/jsz", "/connz", "/0/jsz"):
            assert (await web.get(f"{root}{path}")).status_code == 404


async def test_a_second_start_says_who_holds_the_data(servers: EmbeddedServers) -> None:
    with pytest.raises(DataDirectoryHeld, match=f"held by process {os.getpid()} .* since 20") as held:
        await EmbeddedServers(data_of(servers)).start()
    assert held.value.pid == os.getpid()
    assert read_endpoints(data_of(servers)) == servers.endpoints


@pytest.mark.parametrize("name", ALL)
async def test_a_killed_server_starts_again_where_it_was(servers: EmbeddedServers, name: ServerName) -> None:
    before, endpoints = servers.pid(name), servers.endpoints
    await servers.kill(name)
    with pytest.raises(ServerNotRunning):
        servers.pid(name)
    await servers.restart(name)
    assert servers.pid(name) != before
    assert servers.endpoints == endpoints


async def test_rows_survive_a_killed_postgres(servers: EmbeddedServers) -> None:
    url = servers.endpoints.database_url
    query(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    await servers.kill("postgres")
    await servers.restart("postgres")
    assert query(url, "SELECT answer FROM kept") == "42"


async def test_a_crash_is_reported_and_not_mended(servers: EmbeddedServers) -> None:
    os.kill(servers.pid("nats"), signal.SIGKILL)
    failure = await asyncio.wait_for(servers.wait_failed(), 25)
    assert (failure.server, failure.reason) == ("nats", "it was ended by SIGKILL")
    assert "Server is ready" in failure.tail
    with pytest.raises(ServerNotRunning):
        servers.pid("nats")
    await servers.restart("nats")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(servers.wait_failed(), 0.05)


async def test_a_suspended_server_still_stops(servers: EmbeddedServers) -> None:
    before = servers.pid("temporal")
    os.kill(before, signal.SIGSTOP)
    await asyncio.wait_for(servers.restart("temporal"), 25)
    assert servers.pid("temporal") != before


async def test_stop_leaves_nothing_but_data_and_ports(tmp_path: Path) -> None:
    data = tmp_path / "with space" / ".turnstile"
    servers = EmbeddedServers(data, temporal_address="b:7233")
    first = await servers.start()
    assert len(processes_of(data)) == 3
    await servers.stop()
    await servers.stop()
    assert processes_of(data) == []
    assert not (data / "endpoints.json").exists()
    with pytest.raises(EmbeddedError):
        _ = servers.endpoints
    async with EmbeddedServers(data, temporal_address="b:7233") as again:
        assert again.endpoints == first


async def test_a_taken_port_is_left_alone(tmp_path: Path) -> None:
    def only_nats() -> EmbeddedServers:
        return EmbeddedServers(tmp_path, database_url="postgresql://a", temporal_address="b:7233")

    async with only_nats() as servers:
        first = port_of(servers.endpoints.nats_url)
        assert servers.moved == []
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", first), only_nats() as servers:
        moved = port_of(servers.endpoints.nats_url)
        assert moved != first
        assert servers.moved == [Moved("nats", first, moved)]
    async with only_nats() as servers:  # what another program had for a while is its own again
        assert port_of(servers.endpoints.nats_url) == first
        assert servers.moved == []


def test_a_directory_that_was_removed_has_its_ports_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    first, _ = choose_ports(data)
    (data / "ports.json").unlink()
    assert choose_ports(data) == (first, [])


async def test_external_addresses_are_passed_on(tmp_path: Path) -> None:
    given = Endpoints(
        database_url="postgresql://elsewhere/db",
        nats_url="nats://elsewhere:4222",
        temporal_address="elsewhere:7233",
        temporal_namespace="mine",
    )
    servers = EmbeddedServers(
        tmp_path,
        database_url=given.database_url,
        nats_url=given.nats_url,
        temporal_address=given.temporal_address,
        temporal_namespace=given.temporal_namespace,
    )
    async with servers:
        assert servers.endpoints == given == read_endpoints(tmp_path)
        assert servers.embedded == ()
        assert processes_of(tmp_path) == []
        with pytest.raises(EmbeddedError):
            await servers.restart("postgres")
    assert read_endpoints(tmp_path) is None


async def test_stale_endpoints_are_ignored(tmp_path: Path) -> None:
    stale = Endpoints(database_url="a", nats_url="b", temporal_address="c", temporal_namespace="d")
    write_endpoints(tmp_path, stale)
    assert read_endpoints(tmp_path) is None
    (tmp_path / "lock").write_text(json.dumps({"pid": 1, "started_at": "2020-01-01T00:00:00Z", "command": "gone"}))
    assert read_endpoints(tmp_path) is None
    assert read_endpoints(tmp_path / "missing") is None


@pytest.mark.parametrize("victim", ["parent", pytest.param("warden", marks=pytest.mark.long)])
async def test_a_sigkill_leaves_no_server(tmp_path: Path, victim: str) -> None:
    data = tmp_path / ".turnstile"
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, str(data), stdout=PIPE)
    assert parent.stdout is not None
    pids = json.loads(await asyncio.wait_for(parent.stdout.readline(), 60))
    assert sorted(pids) == sorted(ALL)
    with pytest.raises(DataDirectoryHeld, match=f"process {parent.pid} "):
        await EmbeddedServers(data).start()
    warden = next(int(line.split()[0]) for line in processes_of(data) if "warden.py" in line)
    os.kill(parent.pid if victim == "parent" else warden, signal.SIGKILL)
    if victim == "parent":
        await parent.wait()
        assert read_endpoints(data) is None
        # The next start waits for the old servers instead of failing on them.
        async with EmbeddedServers(data) as servers:
            assert set(pids.values()).isdisjoint(servers.pid(name) for name in ALL)
        assert "database system was not properly shut down" not in (data / "logs" / "postgres.log").read_text()
    else:
        await until(lambda: [line.split()[0] for line in processes_of(data)] == [str(parent.pid)])
        parent.kill()
        await parent.wait()
    await until(lambda: processes_of(data) == [])


async def test_a_failed_start_quotes_the_log_and_stops_the_rest(tmp_path: Path) -> None:
    def made() -> EmbeddedServers:
        return EmbeddedServers(tmp_path, temporal_address="b:7233")

    async with made():
        pass
    version = tmp_path / "postgres" / "PG_VERSION"
    version.write_text("17\n")
    with pytest.raises(ServerStartFailed, match="initialized by PostgreSQL version 17") as failed:
        await made().start()
    assert failed.value.server == "postgres"
    assert processes_of(tmp_path) == []
    assert read_endpoints(tmp_path) is None
    version.write_text("18\n")
    async with made() as servers:
        assert servers.embedded == ("postgres", "nats")


async def test_a_lost_password_is_explained(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    with pytest.raises(DataDirectoryUnusable, match="Restore the file, or remove"):
        await EmbeddedServers(tmp_path, nats_url="nats://a", temporal_address="b").start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
async def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65_534, 65_534)
    with pytest.raises(DataDirectoryUnusable, match="belongs to the user"):
        await EmbeddedServers(tmp_path).start()


def memory_of(pid: int) -> bytes:
    """What a process can write to in its memory, and its environment."""
    held = [Path(f"/proc/{pid}/environ").read_bytes()]
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
            span, rights, *_ = line.split()
            if rights.startswith("rw") and "[v" not in line:
                begin, end = (int(part, 16) for part in span.split("-"))
                memory.seek(begin)
                held.append(memory.read(end - begin))
    return b"".join(held)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("count", [1, 5])  # of 100 kB each; a pipe has 64 of its own accord
async def test_the_warden_has_no_keys_and_passes_them_on(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what `up` has in its environment the servers get none, `mcp serve` all, and their warden none."""
    key = "sk-" + os.urandom(16).hex()
    monkeypatch.setenv("OPENAI_API_KEY", key)
    (tmp_path / "logs").mkdir()
    (tmp_path / "run").mkdir()
    shows = "import os, time; print(os.environ, flush=True); time.sleep(600)"
    supervisor = await Supervisor.launch(tmp_path)

    def program(name: str) -> StartProcess:
        return StartProcess(
            name=name,
            argv=(sys.executable, "-c", shows),
            env=clean_environment(),
            log=tmp_path / "logs" / f"{name}.log",
            stop_signal=signal.SIGTERM,
            death_signal=signal.SIGTERM,
            grace_seconds=5,
        )

    def shown(name: str) -> str:
        return (tmp_path / "logs" / f"{name}.log").read_text(encoding="utf-8")

    try:
        await supervisor.start(program("server"))
        more = {f"MORE_{number}": "y" * 100_000 for number in range(count)}
        await supervisor.start(program("serve"), private={**os.environ, **more})
        await until(lambda: shown("serve").endswith("\n"))
        await supervisor.kill("serve")
        await supervisor.start(program("serve"), private={**os.environ, **more})
        await until(lambda: shown("serve").count("\n") == 2)
        await until(lambda: shown("server").endswith("\n"))
        assert shown("serve").count(key) == 2
        assert shown("serve").count("y" * 100_000) == 2 * count
        assert key not in shown("server")
        assert b"PATH=" in memory_of(supervisor._process.pid)
        assert key.encode() not in memory_of(supervisor._process.pid)
        assert not list((tmp_path / "run").glob("*.env"))
        with pytest.raises(EmbeddedError, match="too large"):
            await supervisor.start(program("serve"), private={"MORE": "y" * (2 << 20)})
    finally:
        await supervisor.close()
