"""The examples of docs/python.md, run as they stand: over NATS and over HTTP, as the environment says."""

import asyncio
import io
import re
from contextlib import redirect_stdout

import pytest

from tests.docs.blocks import blocks_of
from tests.sdk.turns.conftest import Way
from tests.support.gateway import token_of
from tests.support.paths import ROOT
from tests.support.tenants import Tenant
from turnstile.schema.ids import AgentId

MOST_LINES = 12
EXAMPLES = [block for block in blocks_of(ROOT / "docs" / "python.md") if "Client() as client" in block.text]
SHOWN = (
    r"You said: Say hello \(before that: nothing\)",
    r"success You said: What is in the box\? \(before that: nothing\)\n",
    r"1 canceled\n|0 success\n",
    r"You said: Book the room \(before that: nothing\)\n",
    r"You said: My name is Ada .*\nYou said: What is my name\? \(before that: .*My name is Ada\)\n",
    r"helper success \d+\n",
    r"You said: Say hello \(before that: nothing\): success\n",
)
"""What each prints, in their order."""


@pytest.fixture(scope="module")
async def demo(tenant: Tenant) -> Tenant:
    """The default project, with the agent of the page."""
    demo = tenant.named("demo")
    await demo.agent("chat", AgentId("helper"))
    return demo


async def test_each_example_does_what_it_says(way: Way, demo: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTILE_URL", way.address)
    if way.over_http:
        monkeypatch.setenv("TURNSTILE_TOKEN", await token_of(demo.stack, demo.project))

    def run(text: str) -> str:
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, "docs/python.md", "exec"), {"__name__": "__main__"})  # noqa: S102 -- our own page
        return printed.getvalue()

    assert len(EXAMPLES) == len(SHOWN)
    for block, shown in zip(EXAMPLES, SHOWN, strict=True):
        assert len(block.text.splitlines()) <= MOST_LINES, block.place
        printed = await asyncio.to_thread(run, block.text)
        assert re.fullmatch(shown, printed), f"{block.place} prints {printed!r}"
