"""The reducer of `MessageThread` under every order of wakes, answers, looks, ends of turns and deadlines.

Beside it runs a small ledger, and activities whose answers overtake each other.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from turnstile.schema.pump.threads import MessageId, MessageStatus, OpenMessage, ThreadAdvanced
from turnstile.workflows._thread import (
    Action,
    Advance,
    Advanced,
    CancelHandler,
    DeadlinePassed,
    Event,
    Look,
    MessagesWoken,
    ThreadState,
    put_back,
    reduce,
)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PICK = st.integers(0, 1_000)
SHOWN = 3
"""How many open messages a look tells of here."""


@dataclass(eq=False)
class Run:
    """An activity: what it has done so far, and what it will answer."""

    message: MessageId | None
    began: bool = False
    acted: bool = False
    canceled: tuple[MessageId, ...] = ()
    answer: ThreadAdvanced | None = None
    let_go: bool = False


@dataclass
class Ledger:
    """What is open, as the ledger keeps it."""

    version: int = 0
    count: int = 0
    open: dict[MessageId, OpenMessage] = field(default_factory=dict[MessageId, OpenMessage])

    def add(self) -> MessageId:
        """A new message."""
        self.version += 1
        self.count += 1
        name = MessageId(f"m{self.count:03}")
        self.open[name] = OpenMessage(message_id=name, status=MessageStatus.PENDING, listener="a")
        return name

    def look(self, canceled: tuple[MessageId, ...] = ()) -> ThreadAdvanced:
        """As look_at_thread: what is due first."""
        shown = sorted(self.open.values(), key=lambda each: (not each.is_due, each.deadline or BEGIN, each.message_id))
        return ThreadAdvanced(version=self.version, open=tuple(shown[:SHOWN]), open_count=len(shown), canceled=canceled)


class Threads(RuleBasedStateMachine):
    """One workflow, its ledger and its activities."""

    @initialize(asked=st.integers(1, 4))
    def start(self, asked: int) -> None:
        """A fresh workflow looks."""
        self.state = ThreadState()
        self.ledger = Ledger()
        self.runs: list[Run] = [Run(None)]
        self.wakes: list[tuple[MessageId, ...]] = []
        self.gone: set[MessageId] = set()
        for _ in range(asked):
            self.ledger.add()

    def running(self) -> list[MessageId]:
        return [run.message for run in self.runs if run.message is not None]

    def feed(self, event: Event) -> None:
        """Reduce an event, and do what is asked for."""
        before = self.state
        self.state, actions = reduce(before, event)
        assert self.state.version >= before.version
        for action in actions:
            self.take(action)

    def take(self, action: Action) -> None:
        match action:
            case Advance(message):
                assert message not in self.running(), "advanced twice at once"
                self.runs.append(Run(message))
            case CancelHandler(message):
                [run] = [r for r in self.runs if r.message == message]
                assert message in self.gone
                assert not run.let_go
                run.let_go = True
            case Look():
                self.runs.append(Run(None))

    def pick(self, pick: int, runs: list[Run]) -> Run | None:
        return runs[pick % len(runs)] if runs else None

    # What others do.

    @rule()
    def somebody_sends(self) -> None:
        """A message from outside, whose wake is on its way."""
        self.wakes.append((self.ledger.add(),))

    @precondition(lambda self: self.wakes)
    @rule(pick=PICK, is_lost=st.booleans())
    def a_wake_arrives(self, pick: int, is_lost: bool) -> None:
        """In any order; in the place of a lost one the safety net wakes the whole thread, some time."""
        wake = self.wakes.pop(pick % len(self.wakes))
        if is_lost and wake:
            self.wakes.append(())
        else:
            self.feed(MessagesWoken(wake))

    @rule(pick=PICK)
    def a_wake_comes_again(self, pick: int) -> None:
        """For any message that ever was, handled or not."""
        if self.ledger.count:
            self.feed(MessagesWoken((MessageId(f"m{pick % self.ledger.count + 1:03}"),)))

    @rule(pick=PICK)
    def a_turn_ends(self, pick: int) -> None:
        """The bridge hears of it."""
        waiting = [each for each in self.ledger.open.values() if not each.is_due]
        if waiting:
            each = waiting[pick % len(waiting)]
            self.ledger.open[each.message_id] = each.model_copy(update={"turn_is_over": True})
            self.wakes.append((each.message_id,))

    # What activities do.

    @rule(pick=PICK)
    def a_message_is_begun(self, pick: int) -> None:
        """From here on a handler has it in hand."""
        run = self.pick(pick, [r for r in self.runs if r.message and not r.began])
        if run is not None:
            run.began = True

    @rule(pick=PICK, effect=st.sampled_from(["nothing", "message", "respond", "wait"]), minutes=st.integers(1, 9))
    def a_message_is_handled(self, pick: int, effect: str, minutes: int) -> None:
        """What was settled meanwhile is left; a turn that is out is looked after."""
        run = self.pick(pick, [r for r in self.runs if r.began and not r.acted and not r.let_go])
        if run is None or run.message is None:
            return
        run.acted = True
        found = self.ledger.open.get(run.message)
        if found is None:
            return
        self.ledger.version += 1
        if effect == "wait" and found.status is not MessageStatus.WAITING:
            until = BEGIN + timedelta(minutes=minutes)
            update = {"status": MessageStatus.WAITING, "deadline": until}
            self.ledger.open[run.message] = found.model_copy(update=update)
            return
        if not found.is_due and found.deadline is not None and found.deadline > self.now:
            return
        del self.ledger.open[run.message]
        if effect == "respond":
            others = [name for name in self.ledger.open if len(name) % 2 == pick % 2]
            in_hand = {r.message for r in self.runs if r.began and not r.acted}
            run.canceled = tuple(name for name in others if name in in_hand)
            self.gone |= {*run.canceled}
            for name in others:
                del self.ledger.open[name]
        if effect in {"respond", "message"}:
            self.ledger.add()

    @property
    def now(self) -> datetime:
        return getattr(self, "_now", BEGIN)

    @rule(pick=PICK)
    def an_activity_looks(self, pick: int) -> None:
        """At its end, as a look does that is all it does; the answer is on its way."""
        run = self.pick(pick, [r for r in self.runs if (r.acted or not r.message) and not r.answer])
        if run is not None:
            run.answer = self.ledger.look(run.canceled)

    @rule(pick=PICK)
    def an_answer_arrives(self, pick: int) -> None:
        """In any order; of one that was let go, perhaps none."""
        run = self.pick(pick, [r for r in self.runs if r.answer or r.let_go])
        if run is not None:
            self.runs.remove(run)
            self.feed(Advanced(run.message, None if run.let_go else run.answer))

    @precondition(lambda self: self.state.deadline is not None)
    @rule()
    def a_deadline_passes(self) -> None:
        """The timer of the next deadline; the ledger's clock may be behind."""
        assert self.state.deadline is not None
        self._now = max(self.now, self.state.deadline)
        due = {each.message_id for each in self.state.open if each.deadline and each.deadline <= self._now}
        before = set(self.running())
        self.feed(DeadlinePassed(self._now))
        assert set(self.running()) == before | due

    # What must hold.

    @invariant()
    def what_runs_is_known(self) -> None:
        """And nothing else."""
        assert sorted(self.running()) == sorted(self.state.running)
        assert self.state.again <= self.state.running

    @invariant()
    def the_deadline_is_that_of_the_next_idle_message(self) -> None:
        idle = [each.deadline for each in self.state.open if each.message_id not in self.state.running]
        assert self.state.deadline == min((each for each in idle if each), default=None)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        """With nothing on its way, all that is due runs, as far as a look can show it, and what waits is known."""
        if self.wakes or any(run.acted or run.answer or run.let_go or not run.message for run in self.runs):
            return
        look = self.ledger.look()
        due = {each.message_id for each in look.open if each.is_due}
        assert due <= set(self.running())
        assert self.state.is_over == (not self.ledger.open and not self.runs)
        if not self.runs:
            assert (self.state.version, self.state.open) == (look.version, look.open)

    def teardown(self) -> None:
        """Everything comes to its end, and then the workflow is over."""
        if not hasattr(self, "runs"):
            return
        for _ in range(1_000):
            if self.wakes:
                self.a_wake_arrives(0, is_lost=False)
            elif self.runs:
                run = self.runs[0]
                run.began = True
                if run.message is not None and not run.acted and not run.let_go:
                    self.a_message_is_handled(self.began_before(run), "nothing", 1)
                    run.acted = True
                run.answer = run.answer or self.ledger.look(run.canceled)
                self.an_answer_arrives(0)
            elif self.state.deadline is not None:
                self.a_deadline_passes()
            else:
                break
        assert self.state.is_over, self.state
        assert not self.ledger.open

    def began_before(self, run: Run) -> int:
        able = [r for r in self.runs if r.began and not r.acted and not r.let_go]
        return able.index(run)


TestThreads = Threads.TestCase


def opened(*names: str, version: int = 1, more: int = 0, **fields: object) -> ThreadAdvanced:
    """An answer in which these messages are open."""
    known = {"status": MessageStatus.PENDING, "listener": "a", **fields}
    lines = tuple(OpenMessage.model_validate({"message_id": name, **known}) for name in names)
    return ThreadAdvanced(version=version, open=lines, open_count=len(lines) + more)


def test_a_wake_of_no_message_is_a_look_and_that_advances_what_is_due() -> None:
    state, actions = reduce(ThreadState(), MessagesWoken(()))
    assert actions == (Look(),)
    state, actions = reduce(state, Advanced(None, opened("m1", "m2")))
    assert actions == (Advance(MessageId("m1")), Advance(MessageId("m2")))
    assert state.running == {"m1", "m2"}
    assert reduce(state, Advanced(None, opened("m1", "m2")))[1] == ()


def test_a_message_woken_while_it_runs_is_advanced_once_more() -> None:
    state, _ = reduce(ThreadState(), MessagesWoken((MessageId("m1"),)))
    for _ in range(3):
        state, actions = reduce(state, MessagesWoken((MessageId("m1"), MessageId("m1"))))
        assert actions == ()
    waiting = opened("m1", status=MessageStatus.WAITING, deadline=BEGIN)
    state, actions = reduce(state, Advanced(MessageId("m1"), waiting))
    assert actions == (Advance(MessageId("m1")),)
    state, actions = reduce(state, Advanced(MessageId("m1"), waiting))
    assert actions == ()
    assert state.deadline == BEGIN


def test_a_message_that_waits_for_a_turn_is_left_alone_until_that_is_over() -> None:
    waiting = opened("m1", status=MessageStatus.WAITING)
    state, actions = reduce(ThreadState(), Advanced(None, waiting))
    assert actions == ()
    over = opened("m1", status=MessageStatus.WAITING, turn_is_over=True)
    assert reduce(state, Advanced(None, over))[1] == (Advance(MessageId("m1")),)


def test_only_what_was_canceled_in_hand_is_let_go() -> None:
    """A message that left because it was handled is not: its activity may still be telling of it."""
    state, _ = reduce(ThreadState(), Advanced(None, opened("m1", "m2", "m3")))
    answer = opened("m4", version=2).model_copy(update={"canceled": (MessageId("m3"), MessageId("m9"))})
    state, actions = reduce(state, Advanced(MessageId("m1"), answer))
    assert actions == (CancelHandler(MessageId("m3")), Advance(MessageId("m4")))
    assert state.running == {"m2", "m3", "m4"}
    state, actions = reduce(state, Advanced(MessageId("m3"), None))
    assert actions == ()
    assert state.running == {"m2", "m4"}


def test_a_late_answer_is_taken_for_its_end_only() -> None:
    state, _ = reduce(ThreadState(), Advanced(None, opened("m1", "m2", version=5)))
    canceled = opened("m1", version=4).model_copy(update={"canceled": (MessageId("m2"),)})
    state, actions = reduce(state, Advanced(MessageId("m1"), canceled))
    assert state.version == 5
    assert actions[0] == CancelHandler(MessageId("m2"))  # which no other answer tells


def test_a_message_that_is_put_back_is_not_running() -> None:
    state, _ = reduce(ThreadState(), Advanced(None, opened("m1")))
    state = put_back(state, MessageId("m1"))
    assert state.running == frozenset()
    assert not state.is_over
    assert reduce(state, MessagesWoken((MessageId("m1"),)))[1] == (Advance(MessageId("m1")),)


def test_a_thread_is_over_when_nothing_is_open_and_nothing_runs() -> None:
    state, _ = reduce(ThreadState(), Advanced(None, opened("m1")))
    state, _ = reduce(state, Advanced(None, opened(version=2)))
    assert not state.is_over
    state, _ = reduce(state, Advanced(MessageId("m1"), opened(version=2)))
    assert state.is_over
