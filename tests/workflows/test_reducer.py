"""The reducer of `AgentTurn` under every order of doorbells and step results."""

from datetime import UTC, datetime
from typing import assert_never

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schema.ids import AgentTurnId, BoxId, CardId, InboxId, ToolCallId
from schema.states import MessageType, TurnStatus
from schema.turns import Outcome, Ring, StepContinues, StepEnds, StepResult, StepStale, StepSuspends
from workflows._turn import Action, Event, Phase, Rang, Return, RunStep, StepReturned, TurnState, Wait, begin, reduce

DEADLINE = datetime(2026, 1, 1, tzinfo=UTC)
OUTCOME = Outcome(
    agent_turn_id=AgentTurnId("t"),
    status=TurnStatus.SUCCESS,
    deliverable_card_id=CardId("c"),
    output_box_id=BoxId("b"),
)
REPORTS = (MessageType.TOOL_RESULT, MessageType.TIMEOUT)
CALLS = st.sets(st.integers(1, 4), min_size=0, max_size=3)


class Turns(RuleBasedStateMachine):
    """A workflow as `agent_turn` runs it: one action at a time, events reduced until one asks for the next.

    `kept` are the reports that rang and were not yet handed to a step.
    """

    @initialize()
    def start(self) -> None:
        """A fresh workflow."""
        self.state: TurnState
        self.doing: Action
        self.state, self.doing = begin()
        self.kept: dict[InboxId, str] = {}
        self.waiting: set[str] = set()
        self.suspended = False
        self.steps = 0
        self.ends = 0

    def feed(self, event: Event) -> None:
        """Reduce an event and take up the action it asks for."""
        before = self.state
        self.state, action = reduce(before, event)
        if isinstance(self.doing, RunStep) and not isinstance(event, StepReturned):
            assert action is None, "a step runs, and something else is to be done"
            return
        if isinstance(self.doing, Return):
            assert action is None
            return
        assert action is not None
        self.take(action)

    def take(self, action: Action) -> None:
        """What the workflow does next is allowed."""
        self.doing = action
        match action:
            case RunStep(step, reports):
                assert step == self.steps + 1
                handed = [self.kept.pop(row) for row in reports]  # each once, none that did not ring
                assert self.waiting <= set(handed)
                assert not (self.suspended and self.kept)
                self.waiting, self.suspended = set(), False
            case Wait(deadline):
                assert deadline == DEADLINE
                assert self.waiting - set(self.kept.values())
            case Return():
                self.ends += 1
            case _:
                assert_never(action)

    rows = tuple(
        (f"call-{call}", InboxId(f"row-{call}-{kind}"), kind)
        for call in range(1, 5)
        for kind in (*REPORTS, MessageType.STOP)
    )

    @rule(picked=st.lists(st.sampled_from(rows), min_size=1, max_size=5))
    def ring(self, picked: list[tuple[str, InboxId, MessageType]]) -> None:
        """Doorbells, repeated ones and those of strangers among them."""
        rings = [Ring(inbox_id=row, message_type=kind, correlation_id=call) for call, row, kind in picked]
        if not isinstance(self.doing, Return):
            self.kept |= {row: call for call, row, kind in picked if kind in REPORTS}
        self.feed(Rang(tuple(rings)))

    def returns(self, result: StepResult) -> None:
        """The step in hand answers."""
        self.steps = result.step
        self.feed(StepReturned(result))

    def number(self) -> int:
        """The step in hand; a workflow that has just begun hears from the ledger which it is."""
        assert isinstance(self.doing, RunStep)
        return self.doing.step or 3

    @precondition(lambda self: isinstance(self.doing, RunStep))
    @rule()
    def step_continues(self) -> None:
        """Another step follows."""
        self.returns(StepContinues(step=self.number()))

    @precondition(lambda self: isinstance(self.doing, RunStep))
    @rule(calls=CALLS)
    def step_suspends(self, calls: set[int]) -> None:
        """Calls are out; some may have been reported while they were sent."""
        self.waiting, self.suspended = {f"call-{call}" for call in calls}, True
        waiting = tuple(ToolCallId(call) for call in sorted(self.waiting))
        self.returns(StepSuspends(step=self.number(), waiting=waiting, deadline=DEADLINE))

    @precondition(lambda self: isinstance(self.doing, RunStep))
    @rule()
    def step_ends(self) -> None:
        """The turn is over."""
        self.returns(StepEnds(step=self.number(), outcome=OUTCOME))
        assert self.doing == Return(OUTCOME)

    @precondition(lambda self: isinstance(self.doing, RunStep))
    @rule()
    def step_is_stale(self) -> None:
        """Somebody else ended it."""
        self.returns(StepStale(step=self.number()))
        assert self.doing == Return(None)

    @invariant()
    def is_in_one_phase(self) -> None:
        """Phase and action agree, and it ends at most once."""
        phases = {RunStep: Phase.STEPPING, Wait: Phase.WAITING, Return: Phase.ENDED}
        assert self.state.phase is phases[type(self.doing)]
        assert self.ends == isinstance(self.doing, Return)
        assert (self.state.deadline is not None) == isinstance(self.doing, Wait)


TestReducer = Turns.TestCase
