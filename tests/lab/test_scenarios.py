"""Each scenario at a tiny size on the suite's servers: it runs, counts what it should, and leaves nothing running."""

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.bench import run
from lab.bench.agents import write_scripts
from lab.bench.bars import Bars, open_bars
from lab.bench.children import BenchError, child
from lab.bench.environment import Environment, open_environment
from lab.bench.figures import Result
from lab.bench.plan import GatewayPart, Plan, Scenario
from lab.bench.run import RUNNERS
from tests.support.conditions import until
from tests.support.databases import Databases
from tests.support.local import MODEL, weights_or_skip
from tests.turnstile.support import launch_module, processes_of, read_until, turnstile, until_gone
from turnstile.embedded import Endpoints
from turnstile.settings import Settings, load_settings

TINY = Plan(
    asleep_seconds=1.0,
    rounds=1,
    turns=6,
    alone=2,
    stage_turns=4,
    tool_turns=4,
    usual_turns=2,
    usual_rounds=1,
    queue=4,
    asleep=4,
    wake=2,
    streams=2,
    stream_seconds=1.5,
    first_streams=2,
    provider_forms=("openai", "gemini"),
    provider_streams=2,
    provider_seconds=0.4,
    provider_held=(2, 3),
    soak_streams=3,
    soak_minutes=0.03,
    stops=2,
    stop_streams=2,
    forks=(2, 3),
    fork_children=4,
    fork_depth=2,
    fork_width=2,
    load_seconds=0.3,
    conversations=4,
    sse_clients=12,
    sse_cuts=3,
    sse_chunks=40,
    sse_turns=2,
    sse_gap_seconds=0.06,
    sse_paced=2,
    sse_stuck=2,
    slow_seconds=0.5,
    callers=3,
    old_rows=200,
    old_conversations=40,
    day_turns=100,
    growth_turns=3,
    ended_turns=200,
    flood=10,
    quiet_turns=2,
    tpcb_scale=1,
    tpcb_seconds=0.2,
    nats_messages=100,
    warm=1,
    idle_seconds=0.2,
)


def settings_of(directory: Path, servers: Endpoints) -> Settings:
    """The settings of somebody who has servers."""
    lines = (
        f'[database]\nurl = "{servers.database_url}"\n[nats]\nservers = ["{servers.nats_url}"]\n'
        f'[temporal]\naddress = "{servers.temporal_address}"\n'
    )
    path = directory / "config.toml"
    path.write_text(lines)
    return load_settings(path)


@pytest.fixture(scope="module")
async def environment(
    servers: Endpoints, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Environment]:
    """Where it is measured."""
    directory = tmp_path_factory.mktemp("bench")
    async with open_environment(settings_of(directory, servers), TINY, directory) as opened:
        yield opened
    assert await processes_of(directory) == []


@pytest.fixture
def bars() -> Bars:
    """Which nobody sees."""
    with open_bars() as drawn:
        return drawn


def check_turns(result: Result, prefix: str = "") -> None:
    """What every scenario with turns tells."""
    for name in ("queue_delay_ms p50", "step_ms p95", "e2e_ms p99", "rows read a turn", "rows written a turn"):
        assert (result.value(prefix + name) or -1) >= 0, name
    assert 20 < (result.value(f"{prefix}peak memory") or 0) < 1000


@pytest.mark.long
async def test_plain_turns_and_yardsticks(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.TURN](environment, bars)
    check_turns(result)
    for name in ("turns", "bare workflows, one activity", "bare workflows, no activity", "TPC-B", "NATS core"):
        assert (result.value(name) or 0) > 0, name
    assert 3 <= (result.value("database round trips a turn") or 0) <= 8  # a claim is shared by few here
    assert 10 < (result.value("history events a turn") or 0) < 20
    assert {figure.name for figure in result.figures if figure.goal} == {
        "engine share",
        "turns/s ÷ empty workflows/s",
        "CPU ratio",
        "p50 alone above the bare workflow's",
        "p50 alone ÷ the empty workflow's",
        "database round trips a turn",
        "rows written a turn",
    }


@pytest.mark.long
async def test_the_stages_of_a_turn_are_timed(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.STAGES](environment, bars)
    whole = result.value("a turn alone, request to event p50") or 0
    stages = result.details["stages"]
    assert isinstance(stages, list)
    of_it = [figure.value for figure in result.figures if figure.name.startswith("of it: ")]
    assert len(of_it) >= 8
    assert 0 < sum(of_it) < 2 * whole
    for name in ("request read, row written", "turn read, prompt made", "end committed, event heard"):
        assert (result.value(f"of it: {name}") or 0) > 0, name
    for name in ("reply heard", "end marked as announced", "workflow completed"):
        assert (result.value(f"beside it: {name}") or 0) > 0, name


@pytest.mark.long
async def test_tool_turns_have_histories_that_know_no_content(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.TOOL](environment, bars)
    check_turns(result)
    assert (result.value("history slope, 1 to 500 kB of context") or 0) < 0.2
    assert (result.value("database round trips a turn") or 0) > 0


@pytest.mark.long
async def test_a_queue_and_many_agents(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.FANOUT](environment, bars)
    for prefix in ("one agent's queue: ", "4 agents: "):
        check_turns(result, prefix)
        assert (result.value(f"{prefix}turns") or 0) > 0
    assert (result.value("one agent's queue ÷ many agents, turns/s") or 0) > 0


@pytest.mark.long
async def test_streams_take_as_long_as_their_models(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.STREAM](environment, bars)
    check_turns(result)
    assert 1 <= (result.value("step p99 ÷ the model's own time") or 0) < 10
    assert (result.value("chunks heard of one stream") or 0) >= 3
    for streams in ("2 streams", "2 streams that begin together"):
        late = result.value(f"first piece from model to client, {streams} p50") or 0
        added = result.value(f"request to first piece, less the model's time, {streams} p50") or 0
        assert 0 < late < added, streams


@pytest.mark.long
async def test_streams_of_providers_are_read_by_yardsticks_and_by_both_readers(
    environment: Environment, bars: Bars
) -> None:
    result = await RUNNERS[Scenario.PROVIDERS](environment, bars)
    for form in TINY.provider_forms:
        assert (result.value(f"{form}: CPU of the bare loop a chunk") or 0) > 0
        for reader in ("litellm", "bytes"):
            assert (result.value(f"{form}, {reader}: CPU of the worker a chunk ÷ bare") or 0) > 0
            assert (result.value(f"{form}, {reader}: first chunk beyond the provider's p50") or 0) > 0
        assert result.value(f"{form}: streams of 50 a second held") is not None


@pytest.mark.long
async def test_streams_are_whole_while_others_are_stopped(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.SOAK](environment, bars)
    assert result.value("turns that streamed to their end") == 3
    assert result.value("turns whose deliverable lacks chunks") == 0
    assert (result.value("turns stopped meanwhile") or 0) >= 1


@pytest.mark.long
async def test_a_real_model_is_measured(environment: Environment, bars: Bars) -> None:
    await weights_or_skip()
    real = replace(environment, plan=replace(environment.plan, model=MODEL))
    result = await RUNNERS[Scenario.STREAM](real, bars)
    assert (result.value("tokens a second, all streams") or 0) > 1
    assert result.value("turns at once") == 2


@pytest.mark.long
async def test_stops_are_timed(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.STOP](environment, bars)
    check_turns(result)
    assert 0 < (result.value("stop p50") or 0) <= (result.value("stop p99") or 0)


@pytest.mark.long
async def test_forks_are_timed_next_to_bare_workflows(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.FORK](environment, bars)
    for size in (2, 3):
        for name in ("children/s ÷ bare workflows/s", "from the last child's end to the parent's next step"):
            assert (result.value(f"{size} children: {name}") or 0) > 0, name
    assert result.value("tree of depth 2: turns") == 7


@pytest.mark.long
async def test_load_is_offered_at_several_rates(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.LOAD](environment, bars)
    check_turns(result)
    points = result.details["points"]
    assert isinstance(points, list)
    assert len(points) == 6


@pytest.mark.long
async def test_conversations_are_made_and_kept_apart(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.CONVERSATIONS](environment, bars)
    check_turns(result)
    assert (result.value("turns/s ÷ bare workflows/s") or 0) > 0


@pytest.mark.long
async def test_turns_with_and_without_budgets_are_compared(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.BUDGET](environment, bars)
    check_turns(result)
    assert (result.value("with one each ÷ without") or 0) > 0
    assert (result.value("of one project's day ÷ without") or 0) > 0


@pytest.mark.long
async def test_a_gateway_is_measured(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.GATEWAY](environment, bars)
    check_streams(result, TINY)
    assert (result.value("chunks timed") or 0) > 0
    assert result.value("stuck clients that were not cut") == 0
    assert (result.value("chunk from NATS to client, 2 streams p99") or 0) > 0
    assert (result.value("turns/s by HTTP ÷ by NATS") or 0) > 0


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_thousand_streams_are_cut_ten_times_each(environment: Environment, bars: Bars, tmp_path: Path) -> None:
    plan = Plan(gateway_parts=(GatewayPart.STREAMS,))
    full = replace(environment, plan=plan, scripts=write_scripts(tmp_path, plan))
    check_streams(await RUNNERS[Scenario.GATEWAY](full, bars), plan)


def check_streams(result: Result, plan: Plan) -> None:
    """Nothing was lost, nothing came twice, and every client was cut as often as it should be."""
    for name in ("chunks lost", "chunks doubled", "clients whose text differs", "connections that broke by themselves"):
        assert result.value(name) == 0, name
    assert result.value("clients") == plan.sse_clients
    assert result.value("resumes") == plan.sse_clients * plan.sse_cuts
    assert (result.value("chunks to all clients") or 0) >= plan.sse_clients * plan.sse_chunks


@pytest.mark.long
async def test_growth_compares_two_ledgers(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.GROWTH](environment, bars)
    for name in ("enqueue", "claim", "begin", "enqueue in a conversation", "audit of a day"):
        assert (result.value(f"{name}: old ÷ empty") or 0) > 0, name
    assert result.value("audit of a day: violations") == 0


@pytest.mark.long
async def test_turns_sleep_and_some_are_woken(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.SUSPENDED](environment, bars)
    check_turns(result)
    assert (result.value("report to task event p50") or 0) > 0


@pytest.mark.long
async def test_one_project_floods_and_another_goes_on(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.FAIRNESS](environment, bars)
    assert 0 < (result.value("from enqueue to begin p99") or 0) < 20_000
    assert 0 <= (result.value("turns of the flood left after the last") or 0) <= TINY.flood


@pytest.mark.long
async def test_servers_that_sync_and_those_that_do_not_are_compared(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.SYNC](environment, bars)
    for name in ("stored, one by one", "enqueue p99", "plain turns", "engine share"):
        assert (result.value(f"{name}: always ÷ every 2 min") or 0) > 0, name


@pytest.mark.long
async def test_starts_are_timed(environment: Environment, bars: Bars) -> None:
    result = await RUNNERS[Scenario.START](environment, bars)
    seconds = {figure.name: figure.value for figure in result.figures}
    assert len(seconds) == 8
    assert 0 < seconds["python alone"] < seconds["turnstile --help"] < seconds["turnstile up, in an empty directory"]
    assert seconds["a worker's first turn, ended"] > 0


@pytest.mark.long
async def test_ended_turns_are_audited_and_pruned(environment: Environment, bars: Bars) -> None:
    audited = await RUNNERS[Scenario.AUDIT](environment, bars)
    assert audited.value("turns") == TINY.ended_turns
    assert audited.value("violations") == 0
    pruned = await RUNNERS[Scenario.RETENTION](environment, bars)
    assert 0 < (pruned.value("prune: turns") or 0) == pruned.value("dry run: turns")
    assert pruned.value("second prune: turns") == 0
    assert pruned.value("violations") == 0


async def test_a_program_that_ends_early_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    words = ("-c", "import sys; sys.exit('it cannot')")
    async with child("program", words, tmp_path / "log") as started:
        with pytest.raises(BenchError, match=r"program ended with code 1:\nit cannot"):
            await started.wait_for_log("it serves")


@pytest.mark.long
async def test_the_command_prints_a_table_and_writes_a_file(tmp_path: Path, environment: Environment) -> None:
    arguments = (
        "--old-rows",
        "50",
        "--day-turns",
        "50",
        "--turns",
        "5",
        "--config",
        str(environment.directory / "config.toml"),
        "--out",
        str(tmp_path / "out"),
    )
    ran = await turnstile("growth", *arguments, cwd=tmp_path, module="lab.bench")
    assert ran.code == 0, ran.err
    assert "claim: old ÷ empty" in ran.out
    assert "goals met" in ran.out
    assert len(list((tmp_path / "out").glob("*.json"))) == 1


async def test_a_scenario_that_fails_takes_no_other_with_it(
    tmp_path: Path, servers: Endpoints, bars: Bars, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: Environment, __: Bars) -> Result:
        raise BenchError("it cannot be measured")

    async def measures(_: Environment, __: Bars) -> Result:
        return Result(scenario="tool", figures=())

    monkeypatch.setattr(run, "RUNNERS", {Scenario.TURN: fails, Scenario.TOOL: measures})
    report = await run.run_bench(settings_of(tmp_path, servers), TINY, [Scenario.TURN, Scenario.TOOL], bars)
    assert report.failures == {"turn": "it cannot be measured"}
    assert [result.scenario for result in report.results] == ["tool"]


@pytest.mark.long
async def test_an_interrupt_leaves_nothing_running(tmp_path: Path, environment: Environment) -> None:
    words = ("stop", "--config", str(environment.directory / "config.toml"))
    process = await launch_module("lab.bench", *words, cwd=tmp_path, TMPDIR=str(tmp_path))

    async def serving() -> bool:
        return any(" up " in command for _, command in await processes_of(tmp_path))

    await read_until(process.stderr, "stop")
    await until(serving, 30, "a worker is there", pause=0.05)
    process.send_signal(signal.SIGINT)
    _, told = await process.communicate()
    assert process.returncode == 130, told.decode()
    await until_gone(tmp_path)
    assert [*os.scandir(tmp_path)] == []
