"""`python -m lab.pictures`: take the pictures of docs/console.md anew, from a demo project on the real system.

It starts `turnstile up` in a temporary directory, lets the demo project live through two weeks and an afternoon, and
takes a picture of each page in Chromium. `--keep` stays up instead, for looking at it by hand. The picture `trace` is
that of docs/observability.md, of servers of its own.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from lab.pictures.camera import SHOTS, chromium, take
from lab.pictures.plays import PRICES
from lab.pictures.seed import Shop, close_shop, open_shop, this_afternoon, this_morning, two_weeks
from lab.pictures.waterfall import ask_for_quotes, draw
from lab.support.collector import Collector, collecting
from turnstile.ledger.pool import Pool
from turnstile.processes.up import Running, run_up
from turnstile.runtime.telemetry import Telemetry
from turnstile.schema.ids import ChannelId, ProjectId
from turnstile.sdk.client import BridgeClient
from turnstile.settings import GatewaySettings, ModelSettings, ProtocolSettings, Settings
from turnstile.settings.model import ObservabilitySettings
from turnstile.telemetry.tracing import otlp_tracer
from turnstile.transport.connection import connect

PROJECT = ProjectId("bookshop")
TURNS = 240
OUT = Path("docs/images")
TRACE = "trace"
"""The name of the picture that is no page."""


def settings() -> Settings:
    """Those of the demo project: its models with their prices, and no limit of requests."""
    scripts = Path(__file__).with_name("plays.py")
    return Settings(
        protocol=ProtocolSettings(default_project=PROJECT),
        model=ModelSettings(scripts=[scripts], prices=dict(PRICES)),
        gateway=GatewaySettings(requests_per_second=0.0),
    )


async def _play(running: Running, chosen: Settings, names: Sequence[str], out: Path, turns: int, *, keep: bool) -> None:
    endpoints = running.endpoints
    url = endpoints.gateway_url or ""
    pool, conn = (
        Pool(endpoints.database_url, size=4, name="pictures"),
        await connect(endpoints.nats_url, name="pictures"),
    )
    client = BridgeClient(conn, PROJECT, ChannelId(chosen.protocol.default_channel))
    [target] = chosen.worker.worker_targets
    try:
        async with open_shop(pool, client, url, endpoints.nats_url, PROJECT, target) as shop:
            await two_weeks(shop, turns)
            await this_morning(shop)
            await this_afternoon(shop)
            if keep:
                await _stay(shop)
            else:
                await _photograph(shop, names, out)
            await close_shop(shop)
    finally:
        await conn.close()
        await pool.close()


async def _trace(running: Running, chosen: Settings, collector: Collector, out: Path) -> None:
    endpoints = running.endpoints
    [target] = chosen.worker.worker_targets
    pool, conn = (
        Pool(endpoints.database_url, size=4, name="pictures"),
        await connect(endpoints.nats_url, name="pictures"),
    )
    client = BridgeClient(conn, PROJECT, ChannelId(chosen.protocol.default_channel))
    try:
        async with otlp_tracer(collector.url, "tools") as tracer:
            places = (endpoints.gateway_url or "", endpoints.nats_url, PROJECT, target)
            async with open_shop(pool, client, *places, telemetry=Telemetry(tracer=tracer)) as shop:
                draw(await ask_for_quotes(shop, collector), out / f"{TRACE}.png")
                print(out / f"{TRACE}.png")  # noqa: T201
    finally:
        await conn.close()
        await pool.close()


async def _photograph(shop: Shop, names: Sequence[str], out: Path) -> None:
    async with chromium() as browser:
        for shot in SHOTS:
            if not names or shot.name in names:
                print(await take(browser, shop, shot, out))  # noqa: T201 -- what this program is for


async def _stay(shop: Shop) -> None:
    print(f"{shop.url}/console")  # noqa: T201
    for name, token in shop.tokens.items():
        print(f"{name}: {token}")  # noqa: T201
    for name, turn in shop.turns.items():
        print(f"{name}: {turn}", flush=True)  # noqa: T201
    await asyncio.Event().wait()


async def main() -> None:
    """Start everything, play, and take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m lab.pictures", description=__doc__)
    parser.add_argument("names", nargs="*", help="pictures to take, such as `turn`; by default all")
    parser.add_argument("--out", type=Path, default=OUT, help="the directory of the pictures")
    parser.add_argument("--turns", type=int, default=TURNS, help="how many turns the last two weeks had")
    parser.add_argument("--keep", action="store_true", help="take none, and stay up until Ctrl-C")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.names or TRACE in arguments.names:
        async with collecting() as collector:
            observed = settings().model_copy(
                update={"observability": ObservabilitySettings(otlp_endpoint=collector.url)}
            )
            await _on_servers(observed, lambda running: _trace(running, observed, collector, arguments.out))
    if arguments.keep or arguments.names != [TRACE]:
        chosen = settings()
        more = (arguments.names, arguments.out, arguments.turns)
        await _on_servers(chosen, lambda running: _play(running, chosen, *more, keep=arguments.keep))


async def _on_servers(chosen: Settings, play: Callable[[Running], Awaitable[None]]) -> None:
    """Start `turnstile up` in a temporary directory, and play there."""
    with tempfile.TemporaryDirectory(prefix="turnstile-pictures-") as name:
        stop = asyncio.Event()
        up: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
        servers = asyncio.create_task(run_up(chosen, Path(name), stop, say=print, ready=up.set_result))
        await asyncio.wait({servers, up}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if up.done():
                await play(up.result())
        finally:
            stop.set()
            await servers


if __name__ == "__main__":
    asyncio.run(main())
