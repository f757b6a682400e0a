"""Ledger and engine compared (protocol §8): what either lost is mended, at most so often, and by one bridge at a time.

The stack's own net does not look; each test does, when it has lost something.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError

from tests.support.conditions import until
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.net import (
    AGO,
    COMPLETED,
    FAILED,
    OPEN,
    TERMINATED,
    Net,
    claim,
    claimed_report,
    delete,
    in_hand,
    net_of,
    pass_time,
    repairs,
    restarts,
    sign_on,
    status_of,
    terminate,
    unheard,
    until_invisible,
    until_status,
    visible,
    workflow,
)
from tests.support.processes.process import processes_of
from tests.support.processes.stack import Stack, running_here
from tests.support.tenants import ALICE, Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, hand_of
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.safety import reconciler
from turnstile.bridge.safety.reconciler import Reconciler, Workflow
from turnstile.bridge.safety.watchdog import RuleReport
from turnstile.ledger.turns.lease import LiveTurn
from turnstile.ledger.turns.turn_publisher import end_by_force
from turnstile.ledger.turns.waiting import request_stop
from turnstile.processes.run import run_worker
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import AgentId, AgentTurnId, InboxId, uuid7
from turnstile.schema.states import TurnStatus
from turnstile.workflows import _turn, options

TEXT: JsonObject = {"text": "done"}
BOB = AgentId("bob")
pytestmark = pytest.mark.filterwarnings("ignore:Cannot find activity to cancel")  # temporalio's, of a terminated run
Lose = Callable[[Stack, AgentTurnId], Awaitable[None]]


async def fail(stack: Stack, turn: AgentTurnId) -> None:
    """The workflow meets a bug at its next event."""

    def buggy(state: _turn.TurnState, event: _turn.Event) -> Any:
        raise RuntimeError("a bug")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_turn, "reduce", buggy)
        with contextlib.suppress(RPCError):  # it may have had an event of its own meanwhile, and failed at that
            await workflow(stack, turn).signal("doorbell", [])
        await until_status(stack, turn, FAILED)
    await until_invisible(stack, turn)


async def kill(stack: Stack, turn: AgentTurnId) -> None:
    """The workflow is terminated, as in the Web UI."""
    await terminate(stack, turn)


LOSSES: dict[str, Lose] = {"terminated": kill, "deleted": delete, "failed": fail}
lost_in_each_way = pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)


@pytest.mark.usefixtures("worker")
@lost_in_each_way
async def test_a_sleeping_turn_goes_on_with_its_old_deadline(tenant: Tenant, net: Net, lose: Lose) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search"), TEXT)
        await hand.report(call_of(turn, 0))
        before = await hand.until_head(waiting_tool_count=1)
        await lose(tenant.stack, turn)
        await pass_time(tenant)
        counted = await repairs(tenant.pool)
        assert await net.look("engine") == RuleReport("engine", [f"agent_turn_id={turn}"], 1)
        after = await hand.head()
        assert (after["restart_count"], after["turn_epoch"], after["status"]) == (1, 1, "suspended")
        assert after["resume_deadline"] == before["resume_deadline"]
        assert (await repairs(tenant.pool))["engine"] == counted.get("engine", 0) + 1
        assert await status_of(tenant.stack, turn) is OPEN
        await pass_time(tenant)
        assert await net.look("engine") == RuleReport("engine", [])
        await hand.report(call_of(turn, 1))
        ended = await hand.ended(turn)
    assert (ended.view.status, len(ended.steps), len(ended.results())) == ("success", 2, 2)
    assert await tenant.task_events() == {turn: 1}


@pytest.mark.usefixtures("worker")
async def test_a_turn_whose_head_has_just_changed_is_not_suspected(tenant: Tenant, net: Net) -> None:
    """Its workflow may not be visible yet."""
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await terminate(tenant.stack, turn)
        await pass_time(tenant, -AGO)  # however long all this took
        assert (await net.look("engine")).ids == []
        await pass_time(tenant, 2 * AGO)
        assert (await net.look("engine")).mended == 1
        await hand.report(call_of(turn))
        await hand.ended(turn)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("lose", [kill, delete], ids=["terminated", "deleted"])
async def test_a_running_turn_redoes_only_the_step_that_had_not_committed(
    tenant: Tenant, net: Net, lose: Lose, tmp_path: Path
) -> None:
    turn = turn_of(await tenant.enqueue(await tenant.agent("gated"), str(tmp_path)))
    tmp_path.joinpath("1").touch()
    await asked(tmp_path, 2)
    await lose(tenant.stack, turn)
    await pass_time(tenant)
    assert (await net.look("engine")).mended == 1
    await asked(tmp_path, 2, attempt=2)
    tmp_path.joinpath("2").touch()
    ended = await tenant.ended(turn)
    assert (ended.view.status, len(ended.steps)) == ("success", 2)
    assert not tmp_path.joinpath("asked-1-2").exists()
    assert await tenant.task_events() == {turn: 1}


async def asked(directory: Path, step: int, attempt: int = 1) -> None:
    """Returns when the gated model was asked."""

    async def there() -> bool:
        return directory.joinpath(f"asked-{step}-{attempt}").exists()

    await until(there, 25, f"the model is asked for step {step}, attempt {attempt}")


@pytest.mark.usefixtures("worker")
async def test_reports_and_stops_that_the_lost_workflow_had_in_hand_are_not_lost(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        other = Hand(tenant, await tenant.agent("player", BOB, allowed_tools=["search"]), hand.commands)
        reported, stopped = [await own.suspended(calling("search"), TEXT) for own in (hand, other)]
        await terminate(tenant.stack, reported, stopped)
        await claimed_report(tenant, call_of(reported))
        await tenant.pool.run(lambda conn: request_stop(conn, tenant.project, stopped, "enough", InboxId(uuid7())))
        assert len(await claim(tenant)) == 1
        await pass_time(tenant)
        assert (await net.look("engine")).mended == 2
        ended = [await own.ended(turn) for own, turn in ((hand, reported), (other, stopped))]
    assert [each.view.status for each in ended] == ["success", "canceled"]
    assert await tenant.task_events() == {reported: 1, stopped: 1}


@pytest.mark.usefixtures("worker")
async def test_a_turn_that_was_canceled_from_outside_is_stopped_not_restarted(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await workflow(tenant.stack, turn).cancel()
        ended = await hand.ended(turn)
    assert (ended.view.status, ended.view.error_code) == ("canceled", "stopped")
    await until_status(tenant.stack, turn, COMPLETED)
    await pass_time(tenant)
    assert (await net.look("engine")).ids == []


@pytest.mark.usefixtures("worker")
async def test_a_turn_that_is_lost_for_the_fourth_time_is_ended_and_the_next_one_runs(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        queued = turn_of(await tenant.enqueue(hand.agent, json.dumps({"steps": [TEXT]})))
        for number in range(1, reconciler.MAX_RESTARTS + 2):
            await terminate(tenant.stack, turn)
            await pass_time(tenant)
            assert await net.look("engine") == RuleReport("engine", [f"agent_turn_id={turn}"], 1)
            if number <= reconciler.MAX_RESTARTS:
                assert await restarts(tenant, [turn]) == [number]
        ended, following = await hand.ended(turn), await hand.ended(queued)
    assert (ended.view.status, ended.view.error_code) == ("failed", "timeout_reaped_by_watchdog")
    assert [result[0] for result in ended.results()] == ["canceled"]
    assert (following.view.status, following.view.turn_epoch) == ("success", 2)
    assert await tenant.task_events() == {turn: 1, queued: 1}


@pytest.mark.usefixtures("worker")
async def test_an_operators_restart_is_not_counted(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await terminate(tenant.stack, turn)
        engine = net.rules.reconciler
        lost = await engine.list_lost(tenant.pool.run, fresh_seconds=0)
        assert [each.agent_turn_id for each in lost] == [turn]
        assert await engine.bring_back(lost, counted=False) == 1
        assert await restarts(tenant, [turn]) == [0]
        await hand.report(call_of(turn))
        assert (await hand.ended(turn)).view.status == "success"


@pytest.mark.usefixtures("worker")
async def test_a_bridge_that_dies_before_it_counts_a_restart_loses_nothing(
    tenant: Tenant, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: object, **__: object) -> int:
        raise StaleTurn("as if nobody had come to it")

    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await terminate(tenant.stack, turn)
        await claimed_report(tenant, call_of(turn))
        await pass_time(tenant)
        with monkeypatch.context() as patched:
            patched.setattr(reconciler, "restart_turn", dies)
            assert (await net.look("engine")).mended == 0
        assert await status_of(tenant.stack, turn) is OPEN
        assert (await net.look("engine")).ids == []
        await sign_on(tenant.stack)
        await net.look("resume")
        ended = await hand.ended(turn)
    assert ended.view.status == "success"


@pytest.mark.usefixtures("worker")
async def test_bridges_at_once_restart_a_turn_once_and_end_it_once(tenant: Tenant, stack: Stack) -> None:
    nets = [net_of(stack) for _ in range(3)]
    async with hand_of(tenant) as hand:
        agents = await tenant.agents("player", 3, allowed_tools=["search"])
        hands = [Hand(tenant, agent, hand.commands) for agent in agents]
        turns = [await own.suspended(calling("search"), TEXT) for own in hands]
        counted = (await repairs(stack.pool)).get("engine", 0)
        for number in range(1, reconciler.MAX_RESTARTS + 2):
            await terminate(stack, *turns)
            await pass_time(tenant)
            found = await asyncio.gather(*(net.look("engine") for net in nets))
            assert sum(swept.mended for swept in found) == len(turns)
            assert all(swept.failed is None for swept in found)
            if number <= reconciler.MAX_RESTARTS:
                assert await restarts(tenant, turns) == [number] * len(turns)
        ended = [await hand.ended(turn) for turn in turns]
    assert {each.view.error_code for each in ended} == {"timeout_reaped_by_watchdog"}
    assert (await repairs(stack.pool))["engine"] - counted == (reconciler.MAX_RESTARTS + 1) * len(turns)
    assert await tenant.task_events() == dict.fromkeys(turns, 1)


@pytest.mark.usefixtures("worker")
async def test_one_of_several_bridges_looks_into_the_engine(tenant: Tenant, stack: Stack) -> None:
    watchdogs = [net_of(stack).watchdog("engine") for _ in range(3)]
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await terminate(stack, turn)
        await pass_time(tenant)
        await tenant.rows("UPDATE state.duties SET taken_at = taken_at - interval '1 hour'")
        await asyncio.gather(*(watchdog.tick() for watchdog in watchdogs))
        assert sorted(watchdog.repairs["engine"] for watchdog in watchdogs) == [0, 0, 1]
        await hand.report(call_of(turn))
        await hand.ended(turn)


async def leased(tenant: Tenant, *lines: Any) -> tuple[AgentTurnId, AgentTurnId]:
    """A turn that was claimed while no worker is there, and one that is queued behind it."""
    agent = await tenant.agent("player")
    steps = json.dumps({"steps": list(lines) or [TEXT]})
    first, second = turn_of(await tenant.enqueue(agent, steps)), turn_of(await tenant.enqueue(agent, steps))
    await until_status(tenant.stack, first, OPEN)
    return first, second


async def test_a_lease_whose_workflow_is_closed_is_given_up_while_a_worker_is_there(tenant: Tenant, net: Net) -> None:
    turn, queued = await leased(tenant)
    await pass_time(tenant)
    await terminate(tenant.stack, turn)
    net = Net(replace(net.rules, times=replace(net.rules.times, dispatched_timeout=30)))
    assert (await net.look("dispatched_reap")).ids == []  # nobody is there to begin it
    await sign_on(tenant.stack)
    assert (await net.look("dispatched_reap")).ids == []  # somebody has only just come
    await pass_time(tenant)
    assert await net.look("dispatched_reap") == RuleReport("dispatched_reap", [f"agent_turn_id={turn}"], 1)
    ended = await tenant.ended(turn)
    assert (ended.view.status, ended.view.error_code, ended.steps) == ("timeout", "dispatch_timeout", [])
    head = await in_hand(tenant, queued)
    assert (head.status, head.turn_epoch) == ("dispatched", 2)
    async with running_here(tenant.stack, run_worker):
        assert (await tenant.ended(queued)).view.status == "success"
    assert await tenant.task_events() == {turn: 1, queued: 1}


async def test_a_lease_whose_workflow_is_open_only_waits_for_its_worker(tenant: Tenant, net: Net) -> None:
    turn, queued = await leased(tenant)
    await sign_on(tenant.stack)
    await pass_time(tenant)
    assert (await net.look("dispatched_reap")).ids == []
    async with running_here(tenant.stack, run_worker):
        ended = [await tenant.ended(each) for each in (turn, queued)]
    assert [each.view.status for each in ended] == ["success", "success"]


async def test_a_lease_that_was_never_started_is_started_not_given_up(tenant: Tenant, net: Net) -> None:
    """Temporal was away all that time: the worker was there, and nothing rang."""
    await tenant.agent("plain")
    turn = await unheard(tenant)
    await sign_on(tenant.stack)
    await pass_time(tenant)
    assert (await net.look("engine")).ids == []
    assert await net.look("dispatched_reap") == RuleReport("dispatched_reap", [f"agent_turn_id={turn}"], 0)
    assert await status_of(tenant.stack, turn) is OPEN
    async with running_here(tenant.stack, run_worker):
        assert (await tenant.ended(turn)).view.status == "success"


async def unstarted(tenant: Tenant, net: Net) -> tuple[AgentTurnId, list[LiveTurn]]:
    """A late lease that the engine did not know when the rule looked."""
    await tenant.agent("plain")
    turn = await unheard(tenant)
    await sign_on(tenant.stack)
    await pass_time(tenant)
    found = await net.rules.reconciler.list_undispatched(tenant.pool.run, older_seconds=30)
    assert [each.agent_turn_id for each in found] == [turn]
    return turn, found


async def test_a_lease_that_is_started_while_the_rule_looks_is_not_given_up(tenant: Tenant, net: Net) -> None:
    """The engine is back, and the rule 'dispatched, retry' was first."""
    turn, found = await unstarted(tenant, net)
    await net.look("dispatched_retry")
    await net.look("doorbell")
    await until_status(tenant.stack, turn, OPEN)
    assert await net.rules.reconciler.reap_undispatched(found) == 0
    assert (await in_hand(tenant, turn)).status == "dispatched"
    async with running_here(tenant.stack, run_worker):
        assert (await tenant.ended(turn)).view.status == "success"


async def test_a_lease_that_starts_and_ends_while_the_rule_looks_is_nothing_to_it(
    tenant: Tenant, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look and the start the turn has ended: the engine does not start a completed workflow again."""
    turn, found = await unstarted(tenant, net)
    reconciler, look = net.rules.reconciler, net.rules.reconciler._describe

    async def overtaken(_: Reconciler, lease: LiveTurn) -> Workflow:
        seen = await look(lease)
        await net.look("doorbell")
        await tenant.ended(turn)
        await until_status(tenant.stack, turn, COMPLETED)
        return seen

    async with running_here(tenant.stack, run_worker):
        monkeypatch.setattr(Reconciler, "_describe", overtaken)
        assert await reconciler.reap_undispatched(found) == 0
    assert (await tenant.ended(turn)).view.status == "success"
    assert await tenant.task_events() == {turn: 1}


def test_leases_are_never_given_up_where_that_is_off(net: Net) -> None:
    off = replace(net.rules, times=replace(net.rules.times, dispatched_timeout=0))
    assert {rule.name for rule in net.rules.all()} - {rule.name for rule in off.all()} == {"dispatched_reap"}


async def gated(tenant: Tenant, directory: Path) -> AgentTurnId:
    """A turn whose model is being asked, in a worker that the test may kill."""
    turn = turn_of(await tenant.enqueue(await tenant.agent("gated"), str(directory)))
    await asked(directory, 1)
    return turn


def silent_for(net: Net, seconds: float) -> Net:
    """The net, for which a worker or turn is silent after so long."""
    return Net(replace(net.rules, times=replace(net.rules.times, active_reap=seconds)))


@pytest.mark.usefixtures("worker")
async def test_a_long_model_call_is_never_silent(tenant: Tenant, net: Net, tmp_path: Path) -> None:
    turn = await gated(tenant, tmp_path)
    engine = net.rules.reconciler
    lost = await in_hand(tenant, turn)

    async def beats() -> bool:
        return (await engine._describe(lost)).heartbeat is not None

    await until(beats, 25, "the step shows that it lives")
    await sign_on(tenant.stack)
    await pass_time(tenant)
    patient = silent_for(net, 60)
    assert await patient.look("running_reap") == RuleReport("running_reap", [])
    flow, in_an_hour = await engine._describe(lost), datetime.now(UTC) + AGO
    assert not flow.is_silent(in_an_hour, 60), "the ledger's clock is ahead, and Temporal has heard of it lately"
    assert flow.is_silent(in_an_hour, 1), "a worker that is gone would not be missed so soon"
    tmp_path.joinpath("1").touch()
    tmp_path.joinpath("2").touch()
    assert (await tenant.ended(turn)).view.status == "success"


async def test_a_turn_whose_task_waits_for_a_worker_is_not_silent(tenant: Tenant, net: Net) -> None:
    """Another run of it would wait behind the same work, and no turn is ended because workers are busy."""
    engine, now = net.rules.reconciler, datetime.now(UTC)
    async with hand_of(tenant) as hand:
        async with running_here(tenant.stack, run_worker):
            turn = await hand.suspended(calling("search"), TEXT)
        lost = await in_hand(tenant, turn)
        await hand.report(call_of(turn))

        async def queued() -> bool:
            return (await engine._describe(lost)).is_queued

        await until(queued, 25, "its workflow task waits")
        await sign_on(tenant.stack)
        await pass_time(tenant)
        earlier = "UPDATE state.agent_inbox SET created_at = created_at - $1::interval WHERE project_id = $2"
        await tenant.rows(earlier, AGO, tenant.project)
        flow = await engine._describe(lost)
        assert (flow.is_silent(now, 1), replace(flow, is_queued=False).is_silent(now, 1)) == (False, True)
        assert await silent_for(net, 1).look("running_reap") == RuleReport("running_reap", [])
        async with running_here(tenant.stack, run_worker):
            assert (await hand.ended(turn)).view.status == "success"


async def test_a_turn_whose_worker_was_killed_is_started_again_and_goes_on_where_it_was(
    tenant: Tenant, net: Net, hatching: Hatchery, tmp_path: Path
) -> None:
    async with processes_of(tenant.stack.config, hatching) as both:
        await both.worker.start()
        turn = await gated(tenant, tmp_path)
        first = (await workflow(tenant.stack, turn).describe()).run_id
        await both.worker.kill()
        await sign_on(tenant.stack)  # another worker of the target is there
        await pass_time(tenant)
        assert (await silent_for(net, 1).finds("running_reap", turn)).mended == 1
        assert await restarts(tenant, [turn]) == [1]
        assert (await workflow(tenant.stack, turn).describe()).run_id != first
        assert await status_of(tenant.stack, turn, first) is TERMINATED
        for step in ("1", "2"):
            tmp_path.joinpath(step).touch()
        await both.worker.start()
        ended = await tenant.ended(turn)
    assert (ended.view.status, len(ended.steps)) == ("success", 2)
    assert await tenant.task_events() == {turn: 1}


@pytest.mark.usefixtures("worker")
async def test_a_turn_that_stays_silent_is_ended_and_the_next_one_runs(
    tenant: Tenant, net: Net, tmp_path: Path
) -> None:
    """For a net this impatient every step is silent. A worker hears that its run was given up: no stop of the turn."""
    turn = await gated(tenant, tmp_path)
    queued = turn_of(await tenant.enqueue(ALICE, str(tmp_path)))
    await sign_on(tenant.stack)
    for number in range(1, reconciler.MAX_RESTARTS + 1):
        await pass_time(tenant)
        assert (await net.finds("running_reap", turn)).mended == 1
        await asked(tmp_path, 1, attempt=1 + number)
        assert await restarts(tenant, [turn]) == [number]
    await pass_time(tenant)
    assert (await net.finds("running_reap", turn)).mended == 1
    for step in ("1", "2"):
        tmp_path.joinpath(step).touch()
    ended, following = await tenant.ended(turn), await tenant.ended(queued)
    assert (ended.view.status, ended.view.error_code) == ("failed", "timeout_reaped_by_watchdog")
    assert await status_of(tenant.stack, turn) is TERMINATED
    assert (following.view.status, len(following.steps)) == ("success", 2)
    assert await tenant.task_events() == {turn: 1, queued: 1}


async def fenced(hand: Hand) -> AgentTurnId:
    """A sleeping turn that was ended in the ledger alone, a minute ago."""
    turn = await hand.suspended(calling("search"), TEXT)
    located = await in_hand(hand.tenant, turn)
    publisher = NatsPublisher(hand.tenant.stack.conn)
    assert await end_by_force(hand.tenant.pool, publisher, located, TurnStatus.FAILED, "reaped", "reaped")
    return turn


@pytest.mark.usefixtures("worker")
async def test_an_open_workflow_whose_turn_is_over_is_asked_to_end(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await fenced(hand)
        await pass_time(tenant, -AGO)
        assert (await net.look("engine_over")).ids == []  # so soon it may still end by itself
        await pass_time(tenant, AGO + timedelta(seconds=15))
        assert (await net.finds("engine_over", turn)).mended == 1
        await until_status(tenant.stack, turn, COMPLETED)
        found = await workflow(tenant.stack, turn).result()
    assert found["outcome"]["error_code"] == "reaped"
    assert await tenant.task_events() == {turn: 1}


async def test_an_open_workflow_that_does_not_hear_is_terminated(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        async with running_here(tenant.stack, run_worker):
            turn = await fenced(hand)
        await pass_time(tenant, timedelta(seconds=15))
        assert (await net.finds("engine_over", turn)).mended == 1
        assert await status_of(tenant.stack, turn) is OPEN  # asked, and nobody is there to answer
        await pass_time(tenant)
        assert (await net.finds("engine_over", turn)).mended == 1
        assert await status_of(tenant.stack, turn) is TERMINATED
    await until_invisible(tenant.stack, turn)
    assert (await net.look("engine_over")).ids == []


async def test_workflows_of_another_ledger_are_left_alone(tenant: Tenant, net: Net) -> None:
    """Several databases may share an engine, and a target."""
    [target] = tenant.stack.settings.worker.worker_targets
    stranger = AgentTurnId(uuid7())
    await tenant.stack.temporal.start_workflow(
        "AgentTurn", id=options.turn_workflow_id(stranger), task_queue=options.task_queue(target)
    )

    async def there() -> bool:
        return stranger in await visible(tenant.stack)

    await until(there, 25, "the stranger is visible")
    assert (await net.look("engine_over")).ids == []
    assert await status_of(tenant.stack, stranger) is OPEN
    await terminate(tenant.stack, stranger)
