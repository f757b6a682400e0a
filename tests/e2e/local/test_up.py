"""`turnstile up` with a local model: started for a profile that names it, ended with `up`."""

import asyncio
from contextlib import suppress
from pathlib import Path

from tests.support.conditions import until
from tests.support.local import MODEL, weights_or_skip
from tests.support.processes.stack import Stack
from tests.support.tenants import new_tenant, turn_of
from turnstile.processes.up import run_up
from turnstile.schema.states import TurnStatus
from turnstile.settings import LocalSettings


def model_servers(data: Path) -> list[int]:
    """The processes that hold this directory's lock of a model."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            opened = [str(path.readlink()) for path in (process / "fd").iterdir()]
            if any(each.startswith(str(data / "models" / "run")) for each in opened):
                found.append(int(process.name))
    return found


async def test_a_model_that_a_profile_names_runs_while_up_does(stack: Stack, tmp_path: Path) -> None:
    await weights_or_skip()
    tenant = new_tenant(stack)
    agent = await tenant.agent("x", llm={"model": MODEL, "max_tokens": 4})
    settings = stack.settings.model_copy(update={"local": LocalSettings(slots=1, context_tokens=256)})
    stop, ready = asyncio.Event(), asyncio.Event()
    up = asyncio.create_task(run_up(settings, tmp_path, stop, say=print, ready=lambda _: ready.set()))
    log = tmp_path / "models" / "logs" / "smollm2.log"

    async def loaded() -> bool:
        return log.exists() and "loaded in" in log.read_text()

    try:
        await asyncio.wait_for(ready.wait(), 60)
        await until(loaded, 60, "the model was loaded before anybody asked it")
        ended = await tenant.ended(turn_of(await tenant.enqueue(agent, "Hello!")), timeout=90)
        assert ended.view.status == TurnStatus.SUCCESS
        assert log.read_text().count("loaded in") == 1
        assert model_servers(tmp_path)
    finally:
        stop.set()
        await up
    assert model_servers(tmp_path) == []
