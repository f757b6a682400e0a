"""`up` and `demo` as processes: what starts, ends; what dies, is started again once; nothing is left running."""

import asyncio
import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.turnstile.support import PROGRAM, launch, processes_of, read_until, turnstile, until_gone
from turnstile.embedded.ports import free_port


async def test_help_is_fast() -> None:
    """In processor time, against that of importing typer beside it: a loaded machine slows both in the same way."""
    imports = (str(PROGRAM.with_name("python")), "-c", "import asyncio, typer")
    help_seconds, import_seconds = zip(
        *[(await processor_seconds(str(PROGRAM), "--help"), await processor_seconds(*imports)) for _ in range(3)],
        strict=True,
    )
    assert 0.01 < min(help_seconds) < 6 * min(import_seconds)  # 3.6 when this was written


async def processor_seconds(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'temporalio', 'asyncpg', 'nats', 'pydantic_settings', 'litellm', 'xllamacpp'}"
    code = f"import sys, turnstile.cli.app; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([PROGRAM.with_name("python"), "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


async def test_the_demo_shows_everything_and_leaves_nothing(tmp_path: Path) -> None:
    ran = await turnstile(
        "demo", cwd=tmp_path, TMPDIR=str(tmp_path), TURNSTILE__DATABASE__URL="postgresql://elsewhere/x"
    )
    assert ran.code == 0, ran.err
    for part in (
        "Postgres decided that this turn is yours",
        "timeline",
        "You said: Thank you, guide.",
        "/workflows/turn-",
    ):
        assert part in ran.out
    assert os.listdir(tmp_path) == []  # noqa: PTH208 -- pathlib's twin is barred from async functions
    assert await processes_of(tmp_path) == []


@pytest.mark.long
async def test_a_kept_demo_stays_up_until_killed_and_its_data_starts_again(tmp_path: Path) -> None:
    process = await launch("demo", "--keep", "--json", cwd=tmp_path)
    await read_until(process.stderr, "staying up")
    assert (await turnstile("enqueue", "echo", "hi", "--wait", cwd=tmp_path)).code == 0
    process.kill()
    out, _ = await process.communicate()
    assert [turn["status"] for turn in json.loads(out)["turns"]] == ["success", "success"]
    await until_gone(tmp_path)
    assert "nothing is running here" in (await turnstile("turn", "list", cwd=tmp_path)).err
    process = await launch("up", "--json", cwd=tmp_path)
    assert process.stdout is not None
    places = json.loads(await process.stdout.readline())
    assert places["embedded"] == ["postgres", "nats", "temporal"]
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 0
    await until_gone(tmp_path)


@pytest.mark.long
async def test_a_conversation_goes_on_after_everything_was_killed_and_started_again(tmp_path: Path) -> None:
    """PostgreSQL, NATS, Temporal, bridge and worker; the twin that kills the last two alone is run each time."""
    profile = {"name": "helper", "llm_config": {"model": "scripted/chat"}}
    (tmp_path / "helper.yaml").write_text(json.dumps(profile))
    said = list[str]()
    for text in ("My name is Ada", "What is my name?"):
        process = await launch("up", cwd=tmp_path)
        await read_until(process.stdout, "serves")
        if not said:
            assert (await turnstile("profile", "put", "helper.yaml", cwd=tmp_path)).code == 0
            assert (await turnstile("agent", "add", "helper", "--profile", "helper", cwd=tmp_path)).code == 0
        ran = await turnstile("enqueue", "helper", text, "--conversation", "ada", "--wait", cwd=tmp_path)
        said.append(ran.out.splitlines()[1])
        process.kill()
        await process.communicate()
        await until_gone(tmp_path)
    assert said == [
        "You said: My name is Ada (before that: nothing)",
        "You said: What is my name? (before that: My name is Ada)",
    ]


async def kill_server(data: Path, program: str) -> None:
    """SIGKILL, by its id, for the server of this directory whose command line has these words."""
    [pid] = [pid for pid, command in await processes_of(data) if program in command]
    os.kill(pid, signal.SIGKILL)


@pytest.mark.long
async def test_it_runs_as_many_workers_as_its_settings_say(tmp_path: Path) -> None:
    """Behind its health and metrics; one that is killed is started again; all end with it in five seconds."""
    variables = {"TURNSTILE__WORKER__PROCESSES": "2", "TURNSTILE__OBSERVABILITY__METRICS_PORT": str(free_port())}
    process = await launch("up", cwd=tmp_path, **variables)
    await read_until(process.stdout, "serves")
    assert (await turnstile("health", cwd=tmp_path)).out.strip() == f"up (process {process.pid}): serving"
    port = variables["TURNSTILE__OBSERVABILITY__METRICS_PORT"]
    with await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/metrics") as answer:
        metrics = answer.read().decode()
    assert metrics.count("# TYPE turnstile_database_round_trips_total counter") == 1
    assert all(f'turnstile_database_round_trips_total{{process="{number}"}}' in metrics for number in (1, 2))
    found = await turnstile("doctor", cwd=tmp_path)
    assert found.out.count(": serves worker_generic") == 2, found.out
    await kill_server(tmp_path, "--member")
    await read_until(process.stderr, "it is started again")
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 25) == 0
    await until_gone(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "program", "seconds"),
    [
        pytest.param("nats", "nats-server -c", 20, id="nats"),
        # What waits for the ledger gives up after [database].patience_seconds, 20.
        pytest.param("postgres", "bin/postgres -D", 40, id="postgres"),
    ],
)
async def test_a_server_that_dies_is_started_again_once(tmp_path: Path, name: str, program: str, seconds: int) -> None:
    process = await launch("up", cwd=tmp_path)
    await read_until(process.stdout, "serves")
    await kill_server(tmp_path / ".turnstile", program)
    told = await read_until(process.stderr, f"{name} answers again")
    assert f"{name} died: it was ended by SIGKILL" in told
    assert f"The last lines of {tmp_path}/.turnstile/logs/{name}.log" in told
    await kill_server(tmp_path / ".turnstile", program)
    async with asyncio.timeout(seconds):
        _, err = await process.communicate()
    assert process.returncode == 1
    assert b"(server_died)" in err
    await until_gone(tmp_path)


async def test_it_ends_in_five_seconds_though_temporal_hangs_and_says_what_did_not_end(tmp_path: Path) -> None:
    process = await launch("up", cwd=tmp_path)
    await read_until(process.stdout, "serves")
    [temporal] = [
        pid for pid, command in await processes_of(tmp_path / ".turnstile") if "temporal" in command.split()[0]
    ]
    os.kill(temporal, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(6):
        _, err = await process.communicate()
    assert process.returncode == 0
    assert "and canceled: " in " ".join(err.decode().split())
    await until_gone(tmp_path)


async def test_a_stop_during_the_start(tmp_path: Path) -> None:
    process = await launch("up", cwd=tmp_path)
    await read_until(process.stderr, "starting in")
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(25):
        await process.communicate()
    assert process.returncode == 0
    await until_gone(tmp_path)
