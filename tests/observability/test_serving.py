"""Whether a process serves: over HTTP beside its metrics, and by `turnstile health`."""

import asyncio
import os
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.sdk.tools.stack import Stack
from tests.turnstile.support import turnstile
from turnstile.embedded.ports import free_port
from turnstile.settings.model import ObservabilitySettings
from turnstile.telemetry import health
from turnstile.telemetry.health import Health, HealthFile, serving_health
from turnstile.telemetry.metrics import serving_metrics


async def look(port: int) -> tuple[int, str]:
    """Status and body of /health."""

    def get() -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    return await asyncio.to_thread(get)


@pytest.mark.parametrize("role", ["worker", "bridge"])
async def test_worker_and_bridge_serve(
    role: str, stack: Stack, told: dict[str, ObservabilitySettings], tmp_path: Path
) -> None:
    port = told[role].metrics_port
    assert await look(port) == (200, "serving\n")
    ran = await turnstile("health", cwd=tmp_path, TURNSTILE__OBSERVABILITY__METRICS_PORT=str(port))
    assert (ran.code, ran.out) == (0, "serving\n")


async def test_it_is_starting_until_it_serves_and_stuck_where_its_loop_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.1)
    port = free_port()
    state = Health()
    everywhere = {
        "TURNSTILE__OBSERVABILITY__METRICS_HOST": "0.0.0.0",  # noqa: S104 -- as in a container
        "TURNSTILE__OBSERVABILITY__METRICS_PORT": str(port),
    }
    async with serving_metrics("127.0.0.1", port, health=state):
        assert await look(port) == (503, "starting\n")
        ran = await turnstile("health", "--json", cwd=tmp_path, **everywhere)
        assert (ran.code, ran.json()) == (1, {"standing": "starting"})
        state.serves()
        looking = asyncio.create_task(look(port))
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 -- a loop that does not answer
        assert await looking == (503, "stuck\n")
        assert await look(port) == (200, "serving\n")


async def test_nobody_there_and_no_port(tmp_path: Path) -> None:
    ran = await turnstile("health", cwd=tmp_path, TURNSTILE__OBSERVABILITY__METRICS_PORT=str(free_port()))
    assert (ran.code, "no answer from a worker or bridge at 127.0.0.1:" in ran.err) == (3, True)
    ran = await turnstile("health", cwd=tmp_path)
    assert (ran.code, "no worker, bridge or `turnstile up` runs here" in ran.err) == (3, True)
    assert "[observability].metrics_port" in ran.err


async def test_processes_of_a_data_directory_are_found_without_settings(tmp_path: Path) -> None:
    data = tmp_path / ".turnstile"
    async with serving_health(data, "up") as up, serving_health(None, "worker"):
        ran = await turnstile("health", cwd=tmp_path)
        assert (ran.code, ran.out) == (1, f"up (process {os.getpid()}): starting\n")
        up.serves()
        below = tmp_path / "below"
        below.mkdir()
        ran = await turnstile("health", "--json", cwd=below)
        told = {"standing": "serving", "processes": [{"role": "up", "pid": os.getpid(), "standing": "serving"}]}
        assert (ran.code, ran.json()) == (0, told)
        gone = await asyncio.create_subprocess_exec("true")
        await gone.wait()
        left = HealthFile(role="worker", pid=gone.pid, port=1)  # by a kill
        (data / "run" / "health-left.json").write_text(left.model_dump_json())
        assert (await turnstile("health", "--data", data, cwd=tmp_path)).code == 0
    assert (await turnstile("health", "--data", data, cwd=tmp_path)).code == 3
