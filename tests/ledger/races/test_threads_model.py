"""Conversations against a small model of the chain, driven by Hypothesis in any order, with repeats and late ones.

After every step each message is where the model says it is, every request has the answer that the model foresees, and
what must hold of all threads holds. `--hypothesis-profile thorough` takes more and longer runs.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.databases import Databases
from tests.support.pump.pump import assert_threads
from tests.support.pump.threads import USER, Talk, forward, message, sent_by, talk
from turnstile.embedded import Endpoints
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.threads import ThreadLimits
from turnstile.rules.hop import BegunMessage, Effect, Forward, Iterate, NoMessage, Respond
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.pump.threads import MessageId, SegmentId

T = TypeVar("T")
LIMITS = ThreadLimits(max_messages=24, max_hops=3, max_open=5)
PICK = st.integers(min_value=0, max_value=1_000)
TO = st.sampled_from(["a", "a", "b"])
EFFECT = st.sampled_from(
    [
        *(forward("b"), forward("b", turn=AgentTurnId("t")), forward("c")),
        *(Iterate("<again/>"), Iterate("<error/>", system=True)),
        *(Respond("<done/>"), Respond("<done/>"), Respond("<huh/>", system=True)),
        *(Respond("<late/>", system=True, expired=True), NoMessage()),
    ]
)
OPEN = ("pending", "handling", "waiting")


@dataclass(eq=False)
class Place:
    """A segment: whose it is, below which other one, and whether it lives."""

    listener: str
    parent: "Place | None" = None
    live: bool = True
    id: SegmentId | None = None
    """What the ledger calls it, once it was seen."""

    def up(self) -> Iterator["Place"]:
        """It and all above it."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.parent

    @property
    def chain(self) -> str:
        return ".".join([USER, *(place.listener for place in reversed(list(self.up())))])


@dataclass(eq=False)
class Said:
    """A message."""

    place: Place
    sender: str
    kind: str
    request: "Said | None" = None
    """None for one from outside: it is its own."""
    hop: int = 0
    status: str = "pending"
    effect: str | None = None
    attempt: int = 0
    turn: AgentTurnId | None = None
    id: MessageId | None = None
    begun: BegunMessage | None = None
    answer: str | None = None
    """Of one from outside: the reason of its reply."""

    @property
    def root(self) -> "Said":
        return self.request or self

    @property
    def is_open(self) -> bool:
        return self.status in OPEN


@dataclass
class Chain:
    """The model of one thread: what each effect makes of it, in a few lines each."""

    said: list[Said] = field(default_factory=list[Said])
    places: list[Place] = field(default_factory=list[Place])
    version: int = 0

    def open(self) -> list[Said]:
        return [each for each in self.said if each.is_open]

    def place(self, listener: str, parent: Place | None = None) -> Place:
        self.places.append(Place(listener, parent))
        return self.places[-1]

    def send(self, to: str) -> Said:
        tops = [place for place in self.places if place.live and place.parent is None and place.listener == to]
        assert len(tops) <= 1
        self.said.append(Said(tops[0] if tops else self.place(to), USER, "request"))
        return self.said[-1]

    def make(self, cause: Said, place: Place, sender: str, kind: str) -> None:
        self.said.append(Said(place, sender, kind, cause.root, cause.hop + 1))

    def settle(self, said: Said, effect: Effect) -> None:
        """What an effect makes of the chain; nothing if the message was settled."""
        if not said.is_open:
            return
        said.status, here = "handled", said.place
        match effect:
            case Forward() | Iterate() if said.hop >= LIMITS.max_hops or len(self.said) >= LIMITS.max_messages:
                said.effect, said.root.answer = "limit", "limit"
            case Forward(listener):
                said.effect = "forward"
                self.make(said, self.place(listener, here), here.listener, "request")
            case Iterate(system=system):
                said.effect = "self"
                self.make(said, here, "system" if system else here.listener, "system" if system else "self")
            case NoMessage():
                said.effect, said.root.answer = "nothing", "ended"
            case Respond():
                self.respond(said, effect)
        if not self.open():
            for place in self.places:
                place.live = False

    def respond(self, said: Said, effect: Respond) -> None:
        """The segment ends with all below it, and what is said goes up."""
        here = said.place
        said.effect = "respond"
        if effect.expired:
            said.status, said.effect = "canceled", "timeout"
        below = [place for place in self.places if place.live and here in place.up()]
        caught = [each for each in self.open() if each.place in below]
        moving = [each for each in caught if each.place is here and each.kind == "request" and each.status == "pending"]
        if moving:
            fresh = self.place(here.listener, here.parent)
            for each in moving:
                each.place = fresh
        for place in below:
            place.live = False
        for each in caught:
            if each not in moving:
                each.status = "canceled"
        if here.parent is not None:
            self.make(said, here.parent, here.listener, "system" if effect.system else "response")
        else:
            said.root.answer = "undelivered" if effect.system else "responded"
        for each in caught:
            if each.status == "canceled":
                each.root.answer = each.root.answer or "pruned"


class Conversation(RuleBasedStateMachine):
    """Each rule does something to one thread of the ledger, and the same to the model."""

    pool: Pool
    runner: asyncio.Runner

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    @initialize(more=st.integers(0, 3))
    def open_thread(self, more: int) -> None:
        """Begin where the most can happen: some requests in one segment, one of them begun."""
        self.chain = Chain()
        self.made: Talk = self.run(talk(self.pool, limits=LIMITS))
        self.chain.send("a").id = self.made.first
        for _ in range(more):
            self.join("a")
        self.begin(0)

    def pick(self, pick: int, *statuses: str) -> Said | None:
        """One of the messages of these statuses."""
        found = [each for each in self.chain.said if each.status in statuses]
        return found[pick % len(found)] if found else None

    @rule(to=TO)
    def join(self, to: str) -> None:
        """A message from outside; a thread that is full takes none."""
        if len(self.chain.open()) < LIMITS.max_open and len(self.chain.said) < LIMITS.max_messages:
            self.chain.send(to).id = self.run(self.made.join(to))
        else:
            with pytest.raises(Refused, match="messages in flight"):
                self.run(self.made.join(to))

    @rule(pick=PICK)
    def send_again(self, pick: int) -> None:
        """What was sent before, once more."""
        asked = [each for each in self.chain.said if each.request is None]
        said = asked[pick % len(asked)]
        again = message(said.place.listener, self.made.ref, correlation_id=said.id)
        answer = self.run(sent_by(self.pool, again, LIMITS))
        assert (answer.message_id, answer.duplicate) == (said.id, True)

    @rule(pick=PICK)
    def begin(self, pick: int) -> None:
        """Any open message, also one that a handler has in hand."""
        said = self.pick(pick, *OPEN)
        if said is None:
            return
        begun = self.run(self.made.begun(self.id(said)))
        assert begun.was == said.status
        if said.status != "waiting":
            said.status = "handling"
            said.attempt += 1
        assert (begun.attempt, begun.hop, begun.kind, begun.agent_turn_id) == (
            *(said.attempt, said.hop, said.kind),
            said.turn,
        )
        above = said.place.parent
        assert (begun.parent_id, begun.parent_listener) == ((above.id, above.listener) if above else (None, None))
        assert (begun.depth, begun.from_id) == (len(list(said.place.up())), said.sender)
        said.begun = begun

    @rule(pick=PICK)
    def begin_what_is_settled(self, pick: int) -> None:
        """It cannot be begun, nor waited for."""
        said = self.pick(pick, "handled", "canceled")
        if said is not None:
            assert self.run(self.made.begin(self.id(said))) is None
            assert self.run(self.made.wait(self.id(said))) is None

    @rule(pick=PICK)
    def wait(self, pick: int) -> None:
        """A turn is out for a message."""
        said = self.pick(pick, *OPEN)
        if said is None:
            return
        turn = self.run(self.made.wait(self.id(said)))
        assert (turn is None) == (said.status == "pending")
        if turn is not None:
            said.status, said.turn = "waiting", turn

    @rule(pick=PICK, effect=EFFECT)
    def settle(self, pick: int, effect: Effect) -> None:
        """The end of a handling."""
        said = self.pick(pick, "handling", "waiting")
        if said is not None:
            assert said.begun is not None
            self.run(self.made.settle(said.begun, effect))
            self.chain.settle(said, effect)

    @rule(pick=PICK, effect=EFFECT)
    def settle_late(self, pick: int, effect: Effect) -> None:
        """The end of a handling that nobody waits for any more."""
        said = self.pick(pick, "handled", "canceled")
        if said is not None and said.begun is not None:
            before = self.run(self.made.row())
            self.run(self.made.settle(said.begun, effect))
            assert self.run(self.made.row()) == before

    @precondition(lambda self: len([each for each in self.chain.open() if each.begun]) > 1)
    @rule(effects=st.lists(EFFECT, min_size=2, max_size=4))
    def settle_at_once(self, effects: list[Effect]) -> None:
        """Several ends at the same time: in some order each happens, unless one before it has ended its message."""
        handled = [each for each in self.chain.said if each.status in {"handling", "waiting"}]
        pairs = [(said, said.begun, effect) for said, effect in zip(handled, effects, strict=False) if said.begun]

        async def all_of_them() -> list[int]:
            answers = await asyncio.gather(*(self.made.settle(begun, effect) for _, begun, effect in pairs))
            return [answer.version for answer in answers]

        versions = self.run(all_of_them())
        settled = {each.message_id: each.effect for each in self.run(self.made.lines())}
        done = [
            (version, place) for place, version in enumerate(versions) if settled[self.id(pairs[place][0])] is not None
        ]
        assert len({version for version, _ in done}) == len(done)
        for _, place in sorted(done):
            said, _, effect = pairs[place]
            assert said.is_open
            self.chain.settle(said, effect)

    def id(self, said: Said) -> MessageId:
        assert said.id is not None
        return said.id

    @invariant()
    def ledger_and_model_agree(self) -> None:
        self.messages_are_where_the_model_says()
        self.requests_are_answered_as_the_model_says()
        self.a_look_shows_what_is_open()

    def messages_are_where_the_model_says(self) -> None:
        lines = self.run(self.made.lines())
        assert len(lines) == len(self.chain.said)
        for line, said in zip(lines, self.chain.said, strict=True):
            said.id = said.id or line.message_id
            said.place.id = said.place.id or line.segment_id
            found = (line.message_id, line.segment_id, line.chain, line.from_id, line.kind.value, line.request_id)
            root = said.root.id
            assert found == (said.id, said.place.id, said.place.chain, said.sender, said.kind, root)
            told = (line.status.value, line.effect, line.attempt, line.agent_turn_id)
            assert told == (said.status, said.effect, said.attempt, said.turn)
        ids = [place.id for place in self.chain.places if place.id is not None]
        assert len(set(ids)) == len(ids)

    def requests_are_answered_as_the_model_says(self) -> None:
        foreseen = {each.id: each.answer for each in self.chain.said if each.answer is not None}
        assert self.run(self.made.replies()) == foreseen

    def a_look_shows_what_is_open(self) -> None:
        look = self.run(self.made.look())
        shown = [each.message_id for each in look.open]
        assert sorted(shown) == sorted(self.id(each) for each in self.chain.open())
        assert look.open_count == len(shown)
        assert [each.is_due for each in look.open] == sorted((each.is_due for each in look.open), reverse=True)
        assert look.version >= self.chain.version
        self.chain.version = look.version
        live = sorted(place.chain for place in self.chain.places if place.live)
        assert list(look.chains) == live if len(live) <= 10 else len(look.chains) == 10
        assert self.run(self.made.row())["status"] == ("open" if shown else "ended")

    def teardown(self) -> None:
        async def check() -> None:
            async with self.pool.connection() as conn:
                await assert_threads(conn)

        self.run(check())


def test_a_conversation_is_what_its_model_is(servers: Endpoints, migrated: str) -> None:
    databases = Databases(servers.database_url)  # of the loop that drives the machine
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        name = runner.run(databases.create(migrated))
        pool = Pool(databases.url(name), size=5)
        machine = type("Machine", (Conversation,), {"pool": pool, "runner": runner})
        try:
            run_state_machine_as_test(machine)  # pyright: ignore[reportUnknownMemberType] -- untyped in hypothesis
        finally:
            runner.run(pool.close())
            runner.run(databases.drop(name))
            runner.run(databases.close())
