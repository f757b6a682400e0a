"""A gigabyte through a gateway: what it holds of it, and at which rate, beside the store alone (§22)."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.gateway import client, gateway_process, token_of
from tests.support.processes.stack import QUICK, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import new_tenant
from turnstile.processes.connections import open_store

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

PART = bytes(range(256)) * 1024
"""256 KiB."""
PARTS = 4096


async def parts() -> AsyncIterator[bytes]:
    for _ in range(PARTS):
        yield PART


def held(pid: int) -> float:
    """The most megabytes that a process has had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def test_a_gigabyte_passes_a_gateway_and_is_not_held(
    stacks: Stacks, record_property: Callable[[str, object], None]
) -> None:
    large = {**QUICK, "artifacts": {"max_file_mb": 2000}}
    async with stacks.open(large) as stack, running_here(stack), gateway_process(stack) as (pid, url):
        tenant, size = new_tenant(stack), len(PART) * PARTS
        store = open_store(stack.settings.artifacts)
        assert store is not None
        began = time.monotonic()
        await store.write("bare", parts())
        wrote = time.monotonic()
        assert sum([len(part) async for part in store.read("bare", 0, size)]) == size
        bare = size / (wrote - began), size / (time.monotonic() - wrote)
        await store.remove("bare")
        async with client(url, await token_of(stack, tenant.project)) as web:
            first = (await web.post("/v1/artifacts", content=PART)).json()
            assert (await web.get(f"/v1/artifacts/{first['artifact_id']}/content")).content == PART
            before, began = held(pid), time.monotonic()
            sent = await web.post("/v1/artifacts", content=parts(), timeout=600)
            assert sent.status_code == 201, sent.text
            wrote, address = time.monotonic(), f"/v1/artifacts/{sent.json()['artifact_id']}/content"
            read = 0
            async with web.stream("GET", address, headers={"range": "bytes=1-"}) as answer:
                async for part in answer.aiter_raw():
                    read += len(part)
            through = size / (wrote - began), size / (time.monotonic() - wrote)
            assert (sent.json()["size"], read) == (size, size - 1)
        more = held(pid) - before
        names = ("bare_written", "bare_read", "written", "read")
        for name, rate in zip(names, (*bare, *through), strict=True):
            record_property(name, f"{rate / 1e6:.0f} MB/s")  # in `--junit-xml`; what is asserted is no time
        record_property("more", f"{more:.0f} MB")
        assert more <= 64
