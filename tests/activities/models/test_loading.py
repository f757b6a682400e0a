"""When litellm is loaded: only for a real model, once, without a connection; and it is closed without a trace."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.activities.models.asking import question
from tests.activities.models.provider_stub import ProviderStub, Said
from turnstile.activities.models import LitellmModel, ModelAccess
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import put_profile
from turnstile.processes.models import Models
from turnstile.schema.ids import ProjectId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.settings import Settings

_PROGRAM = """
import json, socket, sys, time, asyncio
def refuse(*args, **kwargs): raise AssertionError(f"a connection to {args[1:]}")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = refuse
import psutil
def size(): return psutil.Process().memory_info().rss / 1e6
def worker():
    import turnstile.cli.app, turnstile.processes.run
    from turnstile.activities.models import LitellmModel
    from turnstile.processes.models import Models
    from turnstile.settings import Settings
    real = LitellmModel()
    return real, Models(Settings(), real=real).router
start = time.perf_counter()
real, router = worker()
seconds, megabytes = time.perf_counter() - start, size()
assert "litellm" not in sys.modules
asyncio.run(router.check("scripted/echo"))
assert not {"litellm", "xllamacpp"} & sys.modules.keys()
class Fails:
    def find_spec(self, name, path=None, target=None):
        if name == "litellm.main":
            sys.meta_path.remove(self)
            raise RuntimeError("once")
sys.meta_path.insert(0, Fails())
try:
    asyncio.run(real.warm_up())
except RuntimeError:
    print(not any(name.startswith("litellm") for name in sys.modules), file=sys.stdout)
start = time.perf_counter()
asyncio.run(real.warm_up())
assert "litellm" in sys.modules
print(json.dumps({
    "worker_s": seconds, "worker_mb": megabytes,
    "litellm_s": time.perf_counter() - start, "litellm_mb": size() - megabytes,
}))
"""


def test_a_worker_loads_litellm_only_for_a_real_model(tmp_path: Path) -> None:
    """In a process of its own, where every connection fails and a .env file must change nothing."""
    (tmp_path / ".env").write_text("OPENAI_API_KEY=from-dotenv\n")
    program = _PROGRAM + "import os; assert 'from-dotenv' not in os.environ.values()\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    left_nothing, written = done.stdout.splitlines()
    assert left_nothing == "True"  # of an import that failed: the next one begins anew
    figures = json.loads(written)
    print(figures)  # noqa: T201 -- figures for `pytest -rP`
    assert figures["litellm_mb"] < 400


class Counted(LitellmModel):
    """Counts its loads."""

    loads = 0

    async def warm_up(self):  # pyright: ignore[reportIncompatibleMethodOverride]
        """Count."""
        self.loads += 1
        return await super().warm_up()


@pytest.mark.parametrize(("model", "loads"), [("scripted/echo", 0), ("openai/gpt-4o", 1)])
async def test_warming_up_depends_on_the_profiles(pool: Pool, model: str, loads: int) -> None:
    real = Counted()
    await put_profile(pool, ProjectId("p"), Profile(name="x", llm_config=LlmConfig(model=model)))
    await Models(Settings(), real=real).warm_up(pool)
    assert real.loads == loads
    await real.close()


@pytest.mark.parametrize(("model", "started"), [("scripted/echo", []), ("openai/gpt-4o", []), ("local/mine", ["mine"])])
async def test_a_local_model_that_a_profile_names_is_started(pool: Pool, model: str, started: list[str]) -> None:
    asked: list[str] = []

    async def address(name: str) -> str:
        asked.append(name)
        return "http://127.0.0.1:1/v1"

    for number in range(2):  # one server for all profiles that name it
        await put_profile(pool, ProjectId("p"), Profile(name=f"x{number}", llm_config=LlmConfig(model=model)))
    await Models(Settings(), address, Counted()).warm_up(pool)
    assert asked == started


async def test_closing_leaves_nothing(provider: type[ProviderStub], key_file: Path) -> None:
    """No task, no open connection; closing twice is allowed, and asking again opens anew."""
    before = asyncio.all_tasks()
    async with provider(Said(text=("x",))) as stub:
        model = LitellmModel(ModelAccess({stub.prefix: key_file}, {stub.prefix: stub.api_base}))
        for _ in range(2):
            assert (await question(model, stub.model)).said().text == "x"
            await model.close()
        await model.close()
        await asyncio.sleep(0.05)
        assert not stub._tasks
    assert asyncio.all_tasks() <= before
    await LitellmModel().close()
