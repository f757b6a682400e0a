"""The reducer of `AgentTurn` under every order of doorbells, answers, deadlines and stops."""

from datetime import UTC, datetime

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from turnstile.schema.ids import AgentTurnId, BoxId, CardId, InboxId, ToolCallId
from turnstile.schema.states import MessageType, TurnStatus
from turnstile.schema.turns import (
    Outcome,
    ReportsApplied,
    Ring,
    StepContinues,
    StepEnds,
    StepStale,
    StepSuspends,
    TurnStopped,
)
from turnstile.workflows._turn import (
    Action,
    DeadlinePassed,
    DoorbellRang,
    Event,
    Expire,
    Expired,
    Phase,
    Return,
    RunStep,
    Settle,
    Settled,
    StepGaveUp,
    StepReturned,
    Stop,
    StopAsked,
    Stopped,
    TurnState,
    Wait,
    begin,
    reduce,
)

DEADLINE = datetime(2026, 1, 1, tzinfo=UTC)
OUTCOME = Outcome(
    agent_turn_id=AgentTurnId("t"),
    status=TurnStatus.SUCCESS,
    deliverable_card_id=CardId("c"),
    output_box_id=BoxId("b"),
)
REPORTS = (MessageType.TOOL_RESULT, MessageType.TIMEOUT)
CALLS = st.sets(st.integers(1, 4), min_size=0, max_size=3)
RINGING = (Wait, Return)
"""Between actions only these leave the reducer free to act on a doorbell."""


def calls_of(numbers: set[int]) -> tuple[ToolCallId, ...]:
    """Call ids by number."""
    return tuple(ToolCallId(f"call-{number}") for number in sorted(numbers))


def ring_of(call: str, kind: MessageType) -> Ring:
    """A doorbell for a call."""
    return Ring(inbox_id=InboxId(f"row-{call}-{kind}"), message_type=kind, correlation_id=call)


class Turns(RuleBasedStateMachine):
    """A workflow as `agent_turn` runs it: one action at a time, events reduced until one asks for the next.

    `kept` are the reports that rang and were not yet handed to an activity; `waiting` is what the ledger said last.
    """

    @initialize()
    def start(self) -> None:
        """A fresh workflow."""
        self.state: TurnState
        self.doing: Action
        self.state, self.doing = begin()
        self.kept: dict[InboxId, str] = {}
        self.waiting: set[str] = set()
        self.stopping = False
        self.ends = 0

    def busy(self) -> bool:
        """Whether an activity runs."""
        return not isinstance(self.doing, RINGING)

    def feed(self, event: Event, *, answers: bool) -> None:
        """Reduce an event and take up the action it asks for; `answers` ends the action in hand."""
        self.state, action = reduce(self.state, event)
        if isinstance(self.doing, Return) or (self.busy() and not answers):
            assert action is None, "something is being done, and something else is to be done"
            return
        if action is None:
            assert isinstance(event, DeadlinePassed)
            return
        self.take(action)

    def take(self, action: Action) -> None:
        """What the workflow does next is allowed."""
        self.doing = action
        if self.stopping:
            assert isinstance(action, Stop | Return), "a stop goes before everything else"
        match action:
            case RunStep(step, reports):
                handed = [self.kept.pop(row) for row in reports]  # each once, none that did not ring
                assert step == 0 or self.waiting <= set(handed)
                self.waiting = set()
            case Settle(reports):
                assert reports
                handed = [self.kept.pop(row) for row in reports]
                assert not self.waiting <= set(handed), "a full set is for a step"
            case Wait():
                assert not self.kept, "a report is settled, not slept on"
                assert self.waiting
            case Return():
                self.ends += 1
            case _:
                pass

    @rule(picked=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(REPORTS)), min_size=1, max_size=5))
    def ring(self, picked: list[tuple[int, MessageType]]) -> None:
        """Doorbells, repeated ones and those of strangers among them."""
        rings = tuple(ring_of(f"call-{call}", kind) for call, kind in picked)
        if not isinstance(self.doing, Return):
            self.kept |= {ring.inbox_id: ring.correlation_id for ring in rings}
        self.feed(DoorbellRang(rings), answers=False)

    @rule()
    def stop_is_asked(self) -> None:
        """Somebody wants it to end, perhaps again."""
        self.stopping = True
        self.feed(StopAsked(), answers=False)

    def number(self) -> int:
        """The step in hand; a workflow that has just begun hears from the ledger which it is."""
        assert isinstance(self.doing, RunStep)
        return self.doing.step or 3

    @precondition(lambda self: isinstance(self.doing, RunStep))
    @rule()
    def step_continues(self) -> None:
        """Another step follows."""
        number = self.number()
        self.feed(StepReturned(StepContinues(step=number)), answers=True)
        assert self.doing == (Stop() if self.stopping else RunStep(number + 1))

    @precondition(lambda self: isinstance(self.doing, RunStep))
    @rule(calls=CALLS)
    def step_suspends(self, calls: set[int]) -> None:
        """Calls are out; some may have been reported while they were sent."""
        waiting = calls_of(calls)
        self.waiting = set(waiting)
        result = StepSuspends(step=self.number(), waiting=waiting, deadline=DEADLINE)
        self.feed(StepReturned(result), answers=True)

    @precondition(lambda self: isinstance(self.doing, RunStep))
    @rule()
    def step_ends(self) -> None:
        """The turn is over."""
        self.feed(StepReturned(StepEnds(step=self.number(), outcome=OUTCOME)), answers=True)
        assert self.doing == Return(OUTCOME)

    @precondition(lambda self: isinstance(self.doing, RunStep))
    @rule()
    def step_is_stale(self) -> None:
        """Somebody else ended it."""
        self.feed(StepReturned(StepStale(step=self.number())), answers=True)
        assert self.doing == Return(None)

    @precondition(lambda self: isinstance(self.doing, RunStep))
    @rule()
    def step_gives_up(self) -> None:
        """It was canceled before it could end the turn."""
        self.stopping = True
        self.feed(StepGaveUp(), answers=True)
        assert self.doing == Stop()

    @precondition(lambda self: isinstance(self.doing, Settle))
    @rule(calls=CALLS)
    def reports_are_applied(self, calls: set[int]) -> None:
        """The ledger says which calls still wait: some report may have been deferred."""
        waiting = calls_of(calls)
        self.waiting = set(waiting)
        self.feed(Settled(ReportsApplied(waiting=waiting, deadline=DEADLINE)), answers=True)

    @precondition(lambda self: isinstance(self.doing, Settle))
    @rule()
    def reports_find_the_gate_gone(self) -> None:
        """The turn is over, or elsewhere: the ledger is asked."""
        self.feed(Settled(ReportsApplied(waiting=(), deadline=None, stale=True)), answers=True)
        assert self.doing == (Stop() if self.stopping else RunStep(0))

    @precondition(lambda self: isinstance(self.doing, Wait))
    @rule()
    def deadline_passes(self) -> None:
        """The timer fires."""
        self.feed(DeadlinePassed(), answers=False)
        assert self.doing == Expire()

    @precondition(lambda self: isinstance(self.doing, Expire))
    @rule(calls=CALLS)
    def timeouts_are_injected(self, calls: set[int]) -> None:
        """Some calls timed out; none, if the ledger knows better."""
        rings = tuple(ring_of(call, MessageType.TIMEOUT) for call in calls_of(calls))
        self.kept |= {ring.inbox_id: ring.correlation_id for ring in rings}
        self.feed(Expired(rings), answers=True)

    @precondition(lambda self: isinstance(self.doing, Stop))
    @rule(outcome=st.sampled_from([OUTCOME, None]))
    def turn_is_stopped(self, outcome: Outcome | None) -> None:
        """The stop ended it, or found it over."""
        self.feed(Stopped(TurnStopped(step=1, outcome=outcome)), answers=True)
        assert self.doing == Return(outcome)

    @invariant()
    def phase_and_action_agree(self) -> None:
        """And it ends at most once."""
        phases: dict[type[Action], Phase] = {Wait: Phase.WAITING, Return: Phase.ENDED}
        assert self.state.phase is phases.get(type(self.doing), Phase.BUSY)
        assert self.ends == isinstance(self.doing, Return)


TestReducer = Turns.TestCase
