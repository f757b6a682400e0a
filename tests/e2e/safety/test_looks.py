"""How the net learns what Temporal lost, and what Temporal has beyond the ledger, without listing every workflow (§8).

The first look lists all. Later ones ask what closed, and count; what neither of them tells, a list finds after a while.
"""

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.conditions import until
from tests.support.processes.net import (
    OPEN,
    TERMINATED,
    Net,
    delete,
    in_hand,
    pass_time,
    repairs,
    status_of,
    terminate,
    visible,
    workflow,
)
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, hand_of
from turnstile.bridge.safety.reconciler import UNKNOWN_SECONDS, Reconciler
from turnstile.bridge.safety.visibility import Visibility
from turnstile.bridge.safety.watchdog import RuleReport
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, uuid7
from turnstile.workflows import options

TEXT: JsonObject = {"text": "done"}
AN_HOUR = timedelta(hours=1)
pytestmark = pytest.mark.filterwarnings("ignore:Cannot find activity to cancel")  # temporalio's, of a terminated run


def engine(net: Net) -> Reconciler:
    """What compares the two."""
    return net.rules.reconciler


def no_more_lists(patched: pytest.MonkeyPatch) -> None:
    """From now on no list of all open workflows may be asked for."""

    async def asked(*_: object) -> None:
        raise AssertionError("all workflows were listed")

    patched.setattr(Visibility, "list_open", asked)


async def stranger(stack: Stack) -> AgentTurnId:
    """An open workflow without a ledger's id, of a turn that nobody knows; no worker gets to it."""
    [target] = stack.settings.worker.worker_targets
    turn = AgentTurnId(uuid7())
    await stack.temporal.start_workflow(
        "AgentTurn", id=options.turn_workflow_id(turn), task_queue=options.task_queue(target), start_delay=AN_HOUR
    )
    await until_visible(stack, turn)
    return turn


async def until_visible(stack: Stack, turn: AgentTurnId) -> None:
    """Wait until visibility lists its workflow as open."""

    async def there() -> bool:
        return turn in await visible(stack)

    await until(there, 25, f"the workflow of {turn} is visible")


async def settled(tenant: Tenant, net: Net) -> None:
    """The net has looked once, and all is well."""
    await pass_time(tenant)
    assert await net.look("engine") == RuleReport("engine", [])


async def goes_on(hand: Hand, turn: AgentTurnId) -> None:
    """The turn hears its report, and ends once."""
    await hand.report(call_of(turn))
    assert (await hand.ended(turn)).view.status == "success"
    assert await hand.tenant.task_events() == {turn: 1}


@pytest.mark.usefixtures("worker")
async def test_a_look_at_sleeping_turns_lists_none_of_them(
    tenant: Tenant, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await settled(tenant, net)
        for rule in ("engine_over", "engine_unknown"):
            assert await net.look(rule) == RuleReport(rule, [])
        with monkeypatch.context() as patched:
            no_more_lists(patched)
            for rule in ("engine", "engine_over", "engine_unknown"):
                assert await net.look(rule) == RuleReport(rule, [])
        await goes_on(hand, turn)


@pytest.mark.usefixtures("worker")
async def test_a_workflow_that_was_terminated_is_found_among_those_that_closed(
    tenant: Tenant, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although as many are open as before, and its head has just changed."""
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await settled(tenant, net)
        other = await stranger(tenant.stack)
        await terminate(tenant.stack, turn)
        with monkeypatch.context() as patched:
            no_more_lists(patched)
            for number in (1, 2):
                assert (await net.finds("engine", turn)).mended == 1
                assert (await in_hand(tenant, turn)).restart_count == number
                assert await net.look("engine") == RuleReport("engine", [])  # its closed run is settled
                if number == 1:
                    await workflow(tenant.stack, turn).terminate()
        await goes_on(hand, turn)
    await terminate(tenant.stack, other)


@pytest.mark.usefixtures("worker")
async def test_a_workflow_that_was_deleted_is_found_by_the_numbers(
    tenant: Tenant, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await settled(tenant, net)
        await delete(tenant.stack, turn)
        with monkeypatch.context() as patched:
            patched.setattr(Visibility, "list_closed", none_closed)
            assert await net.look("engine") == RuleReport("engine", [f"agent_turn_id={turn}"], 1)
        await goes_on(hand, turn)


async def none_closed(*_: object, **__: object) -> list[object]:
    """No workflow is said to have closed."""
    return []


def times_up(net: Net) -> Net:
    """The net, for which the last list is too long ago."""
    return Net(replace(net.rules, reconciler=replace(engine(net), list_seconds=0)))


def another_temporal(net: Net) -> Net:
    """The net, whose last look was into another Temporal, as after a wipe."""
    engine(net).looks.engine = "before"
    return net


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("later", [times_up, another_temporal], ids=["by the next list", "in another Temporal"])
async def test_numbers_that_lie_hide_a_lost_workflow_only_until_all_are_listed(
    tenant: Tenant, net: Net, later: Callable[[Net], Net]
) -> None:
    """One is deleted without a trace, and one that nobody knows is open in its place."""
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await settled(tenant, net)
        other = await stranger(tenant.stack)
        await delete(tenant.stack, turn)
        await pass_time(tenant)
        assert await net.look("engine") == RuleReport("engine", [])
        assert await later(net).look("engine") == RuleReport("engine", [f"agent_turn_id={turn}"], 1)
        await goes_on(hand, turn)
    await terminate(tenant.stack, other)


async def beyond(tenant: Tenant, net: Net, ledger: str | None = None) -> AgentTurnId:
    """The open workflow of a turn that this ledger does not know; the ledger started it, or the one with this id."""
    agent = await tenant.agent("plain")
    known = await in_hand(tenant, turn_of(await tenant.enqueue(agent)))
    lost = known.model_copy(update={"agent_turn_id": AgentTurnId(uuid7())})
    starter = net.rules.reconciler.starter
    starter._ledger = ledger or await starter.ledger()
    assert await starter.start(lost)
    starter._ledger = ""
    await until_visible(tenant.stack, lost.agent_turn_id)
    return lost.agent_turn_id


def a_minute_later(net: Net) -> None:
    """What the net saw first, it saw a minute ago."""
    unknown = engine(net).looks.unknown
    unknown.update({turn: since - UNKNOWN_SECONDS for turn, since in unknown.items()})


async def test_an_open_workflow_whose_turn_this_ledger_lost_is_terminated(tenant: Tenant, net: Net) -> None:
    turn = await beyond(tenant, net)
    assert (await net.look("engine_unknown")).ids == []  # seen for the first time
    assert (await net.look("engine_unknown")).ids == []
    a_minute_later(net)
    before = (await repairs(tenant.pool)).get("engine_unknown", 0)
    assert await net.look("engine_unknown", dry_run=True) == RuleReport("engine_unknown", [f"agent_turn_id={turn}"])
    assert await net.look("engine_unknown") == RuleReport("engine_unknown", [f"agent_turn_id={turn}"], 1)
    assert await status_of(tenant.stack, turn) is TERMINATED
    assert (await repairs(tenant.pool))["engine_unknown"] == before + 1


async def test_an_open_workflow_of_another_ledger_is_left_alone(tenant: Tenant, net: Net) -> None:
    turns = [await beyond(tenant, net, str(uuid.uuid4())), await stranger(tenant.stack)]
    for _ in range(2):
        assert (await net.look("engine_unknown")).ids == []
        a_minute_later(net)
    assert [await status_of(tenant.stack, turn) for turn in turns] == [OPEN, OPEN]
    await terminate(tenant.stack, *turns)
