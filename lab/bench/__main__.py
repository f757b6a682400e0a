"""`python -m lab.bench`: measures what turns cost on this machine."""

# ruff: noqa: PLC0415 -- heavy imports wait until the command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.bench.plan import BY_NAME, GatewayPart, Plan, Scenario
from lab.bench.providers.forms import FORMS
from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session

_DEFAULT = Plan()
_USUAL = [scenario for scenario in Scenario if scenario not in BY_NAME]
_NAMED = [scenario for scenario in Scenario if scenario in BY_NAME]
OUT = Path("bench-results")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@command(app, "bench")
async def bench(
    session: "Session",
    scenarios: Annotated[
        list[Scenario] | None,
        typer.Argument(
            help=f"Scenarios to measure; by default {', '.join(_USUAL)}. Only by name: {', '.join(_NAMED)}.",
            metavar="[SCENARIO]...",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of turns and yardsticks; the medians count.")
    ] = _DEFAULT.rounds,
    turns: Annotated[
        int, typer.Option(min=1, help="Concurrent turns, and concurrent bare workflows.")
    ] = _DEFAULT.turns,
    alone: Annotated[int, typer.Option(min=1, help="Turns, and bare workflows, one after the other.")] = _DEFAULT.alone,
    stage_turns: Annotated[int, typer.Option(min=1, help="Turns whose stages are timed.")] = _DEFAULT.stage_turns,
    tool_turns: Annotated[int, typer.Option(min=1, help="Concurrent turns with a tool call.")] = _DEFAULT.tool_turns,
    usual_turns: Annotated[
        int, typer.Option(min=1, help="Concurrent turns whose models take as long as real ones.")
    ] = _DEFAULT.usual_turns,
    queue: Annotated[
        int, typer.Option(min=1, help="Turns in one agent's queue, and agents with a turn each.")
    ] = _DEFAULT.queue,
    asleep: Annotated[int, typer.Option(min=1, help="Turns put to sleep.")] = _DEFAULT.asleep,
    wake: Annotated[int, typer.Option(min=1, help="Sleeping turns to wake.")] = _DEFAULT.wake,
    streams: Annotated[int, typer.Option(min=1, help="Models that stream concurrently.")] = _DEFAULT.streams,
    stream_seconds: Annotated[
        float, typer.Option(min=0.5, help="Seconds that each model streams.")
    ] = _DEFAULT.stream_seconds,
    first_streams: Annotated[
        int, typer.Option(min=1, help="Streams at once whose first pieces are timed.")
    ] = _DEFAULT.first_streams,
    model: Annotated[
        str, typer.Option(help="A real model for `stream`, such as local/smollm2, for orientation.", metavar="ID")
    ] = _DEFAULT.model,
    provider_forms: Annotated[
        list[str] | None,
        typer.Option("--provider-form", help=f"Wire form of `providers`, all by default: {', '.join(FORMS)}."),
    ] = None,
    provider_streams: Annotated[
        int, typer.Option(min=1, help="Streams at once of each wire form.")
    ] = _DEFAULT.provider_streams,
    provider_seconds: Annotated[
        float, typer.Option(min=0.5, help="Seconds that each of them lasts.")
    ] = _DEFAULT.provider_seconds,
    provider_held: Annotated[
        list[int] | None, typer.Option(min=1, help="Numbers of streams that a worker is tried with, until it is late.")
    ] = None,
    soak_streams: Annotated[int, typer.Option(min=1, help="Streams at once of `soak`.")] = _DEFAULT.soak_streams,
    soak_minutes: Annotated[
        float, typer.Option(min=0.1, help="How long `soak` streams, a minute for each turn.")
    ] = _DEFAULT.soak_minutes,
    stops: Annotated[int, typer.Option(min=1, help="Turns stopped while models stream.")] = _DEFAULT.stops,
    stop_streams: Annotated[
        int, typer.Option(min=1, help="Models that stream while turns are stopped.")
    ] = _DEFAULT.stop_streams,
    forks: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1000, help="Children of one turn, a figure each; by default 16, 128 and 1,000."),
    ] = None,
    load_seconds: Annotated[
        float, typer.Option(min=0.5, help="Seconds for each rate of arrival.")
    ] = _DEFAULT.load_seconds,
    parts: Annotated[
        list[GatewayPart] | None,
        typer.Option("--part", help=f"Part of `gateway`, all by default: {', '.join(GatewayPart)}.", metavar="PART"),
    ] = None,
    sse_clients: Annotated[int, typer.Option(min=1, help="Clients whose streams are cut.")] = _DEFAULT.sse_clients,
    sse_chunks: Annotated[int, typer.Option(min=2, help="Chunks of each of their turns.")] = _DEFAULT.sse_chunks,
    sse_cuts: Annotated[int, typer.Option(min=0, help="Cuts of each stream.")] = _DEFAULT.sse_cuts,
    sse_turns: Annotated[int, typer.Option(min=1, help="Turns that these clients follow.")] = _DEFAULT.sse_turns,
    sse_paced: Annotated[int, typer.Option(min=1, help="Streams whose chunks are timed.")] = _DEFAULT.sse_paced,
    sse_stuck: Annotated[int, typer.Option(min=1, help="Clients that take nothing.")] = _DEFAULT.sse_stuck,
    callers: Annotated[int, typer.Option(min=1, help="Callers over HTTP, and over NATS.")] = _DEFAULT.callers,
    old_rows: Annotated[int, typer.Option(min=1, help="Old turns; 10 million take some 18 GB.")] = _DEFAULT.old_rows,
    old_conversations: Annotated[
        int, typer.Option(min=1, help="Conversations of the old turns; a million take some 5 GB.")
    ] = _DEFAULT.old_conversations,
    day_turns: Annotated[int, typer.Option(min=1, help="Turns of the day that is audited.")] = _DEFAULT.day_turns,
    ended_turns: Annotated[
        int, typer.Option(min=1, help="Ended turns for `audit` and `retention`; a million take some 4 GB.")
    ] = _DEFAULT.ended_turns,
    flood: Annotated[int, typer.Option(min=1, help="Turns of the flood in `fairness`.")] = _DEFAULT.flood,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = _DEFAULT.workers,
    split: Annotated[bool, typer.Option("--split", help="Run worker and bridge as separate processes.")] = False,
    out: Annotated[Path, typer.Option(help="Directory for the JSON file and the pictures.", metavar="DIR")] = OUT,
) -> None:
    """Measure turns next to yardsticks of this machine, on embedded servers or on those the settings name.

    Prints one table; writes one JSON file, and pictures of latency against load and of one turn. See
    docs/performance.md.
    """
    from lab.bench.bars import open_bars
    from lab.bench.children import BenchError
    from lab.bench.report import plain, save, summary, table
    from lab.bench.run import run_bench

    plan = Plan(
        rounds=rounds,
        turns=turns,
        alone=alone,
        stage_turns=stage_turns,
        tool_turns=tool_turns,
        usual_turns=usual_turns,
        queue=queue,
        asleep=asleep,
        wake=wake,
        streams=streams,
        stream_seconds=stream_seconds,
        first_streams=first_streams,
        model=model,
        provider_forms=tuple(form for form in FORMS if form in (provider_forms or FORMS)),
        provider_streams=provider_streams,
        provider_seconds=provider_seconds,
        provider_held=tuple(provider_held or _DEFAULT.provider_held),
        soak_streams=soak_streams,
        soak_minutes=soak_minutes,
        stops=stops,
        stop_streams=stop_streams,
        forks=tuple(forks or _DEFAULT.forks),
        load_seconds=load_seconds,
        gateway_parts=tuple(parts or GatewayPart),
        sse_clients=sse_clients,
        sse_chunks=sse_chunks,
        sse_cuts=sse_cuts,
        sse_turns=sse_turns,
        sse_paced=sse_paced,
        sse_stuck=sse_stuck,
        callers=callers,
        old_rows=old_rows,
        old_conversations=old_conversations,
        day_turns=day_turns,
        growth_turns=2 * turns,
        ended_turns=ended_turns,
        flood=flood,
        workers=workers,
        split=split,
    )
    with open_bars() as bars:
        report = await run_bench(session.settings, plan, scenarios or _USUAL, bars)
    written = save(report, out)
    if session.out.as_json:
        session.out.document(plain(report))
    else:
        session.out.show(table(report))
        session.out.line(summary(report))
    for path in written:
        session.out.remark(f"written: {path}")
    drawn = [scenario for scenario in ("load", "stages") if report.result(scenario) is not None]
    if len(written) <= len(drawn):
        session.out.remark("no picture: pip install matplotlib draws it")
    if report.failures:
        raise BenchError("; ".join(f"{scenario}: {error}" for scenario, error in report.failures.items()))


if __name__ == "__main__":
    app()
