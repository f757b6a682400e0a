"""Who may send the next request to a model (protocol §7.9): every order of requests, answers, refusals and deaths."""

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from turnstile.rules.model_queue import (
    DEAD_SECONDS,
    LONGEST_PAUSE,
    MINUTE,
    RENEW_SECONDS,
    SILENT_SECONDS,
    Accept,
    Change,
    Join,
    Leave,
    ModelQueue,
    Refuse,
    Settle,
    changed,
    next_look,
)
from turnstile.schema.ids import ProjectId
from turnstile.schema.model_rates import ModelRate, rate_of

A, B, C = map(ProjectId, ("a", "b", "c"))
WORKERS = ("w1", "w2")


@dataclass
class World:
    """A queue, and what happened to it."""

    rate: ModelRate | None = None
    now: float = 1_000_000.0
    queue: ModelQueue = field(default_factory=ModelQueue)
    sent: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """When which request was let through."""
    projects: dict[str, ProjectId] = field(default_factory=dict[str, ProjectId])

    def change(self, *changes: Change, worker: str = "w1") -> list[str]:
        """Apply them; returns who was let through."""
        before = {sent.ticket for sent in self.queue.sent}
        self.queue = changed(self.queue, changes, self.now, worker, self.rate)
        for change in changes:
            if isinstance(change, Join):
                self.projects[change.ticket] = change.project_id
        gone = [sent.ticket for sent in self.queue.sent if sent.ticket not in before]
        self.sent += [(self.now, ticket) for ticket in gone]
        if gone:
            self._check()
        return gone

    def _check(self) -> None:
        assert self.queue.paused_until <= self.now, "somebody went while the provider wants none"
        if self.queue.window:
            assert sum(not sent.accepted for sent in self.queue.sent) <= self.queue.window
        if self.rate is not None:
            requests, tokens = self.queue.used(self.now)
            assert requests <= (self.rate.requests_per_minute or requests)
            most = self.rate.tokens_per_minute or tokens
            assert tokens <= most

    def later(self, seconds: float) -> list[str]:
        """Let time pass, and everybody look who is due on the way; workers say that they live."""
        until, gone = self.now + seconds, list[str]()
        while True:
            look = next_look(self.queue, self.now, self.rate)
            if look is None:
                break
            look = min(max(look, self.now + 0.001), self.now + RENEW_SECONDS)
            if look > until:
                break
            self.now = look
            gone += self.alive()
        self.now = max(until, self.now)
        return gone + self.alive()

    def alive(self) -> list[str]:
        return [ticket for worker in WORKERS for ticket in self.change(worker=worker)]


def joins(*projects: ProjectId, tokens: int = 1) -> list[Join]:
    """Requests of these projects, with names by their order."""
    return [Join(f"{project}{number}", project, tokens) for number, project in enumerate(projects)]


def test_an_open_queue_lets_everybody_through() -> None:
    world = World()
    assert world.queue.is_open(world.now)
    assert world.change(*joins(A, A, B)) == ["a0", "b2", "a1"]
    assert world.queue.is_open(world.now)


def test_projects_take_turns_and_keep_their_order() -> None:
    world = World()
    world.change(Refuse(None, world.now + 30))
    assert world.change(*joins(A, A, A, A, B, B, C)) == []
    assert world.later(29) == []
    order = world.later(1)
    assert order == ["a0"]  # one probes
    while world.queue.waiting:
        answered = order[-1] if len(order) == 1 else next(s.ticket for s in world.queue.sent if not s.accepted)
        order += world.change(Accept(answered))
    assert order == ["a0", "b4", "c6", "a1", "b5", "a2", "a3"]
    for sent in world.queue.sent:
        world.change(Settle(sent.ticket, 1))
    assert world.queue.is_open(world.now)


def test_a_project_that_comes_back_at_once_does_not_starve_another() -> None:
    world = World(ModelRate(requests_per_minute=1))
    world.change(*joins(A, B, B, B))
    order = ["a0"]
    for number in range(10, 14):
        world.change(Join(f"a{number}", A, 1))
        order += world.later(MINUTE)
    assert order == ["a0", "b1", "a10", "b2", "a11"]


def test_the_window_doubles_with_the_answers_and_a_refusal_closes_it() -> None:
    world = World()
    world.change(Refuse(None, world.now + 5), *joins(*[A] * 40))
    wave = world.later(5)
    for size in (1, 2, 4, 8):
        assert len(wave) == size
        wave = [ticket for sent in wave for ticket in world.change(Accept(sent))]
    first, *others = wave
    world.change(Refuse(first, world.now + 5))
    assert world.queue.refusals == 1
    assert [ticket for other in others for ticket in world.change(Accept(other))] == []
    assert len(world.later(5)) == 1
    assert world.queue.refusals == 1  # it is reset by answers that came after the pause


def test_pauses_get_longer_while_nothing_is_answered_and_are_as_long_as_asked() -> None:
    world, pauses = World(), list[float]()
    for _ in range(4):
        pauses.append(world.queue.pause_seconds(None, 1, 5))
        world.change(Refuse(None, world.now + pauses[-1]), Refuse(None, world.now + pauses[-1]))
        world.later(pauses[-1])
    assert pauses == [1, 2, 4, 5]
    assert world.queue.pause_seconds(60, 1, 5) == 60
    assert world.queue.pause_seconds(0, 1, 5) == 5
    assert world.queue.pause_seconds(86_400, 1, 5) == LONGEST_PAUSE


def test_a_silent_probe_and_a_dead_worker_hold_nobody_up_for_long() -> None:
    world = World()
    world.change(Refuse(None, world.now + 1), Join("dead", A, 1), worker="gone")
    world.change(*joins(B, B))
    assert world.later(1) == ["dead"]
    assert world.later(SILENT_SECONDS) == ["b0", "b1"]
    world.change(Refuse("b0", world.now + DEAD_SECONDS + 1), Join("dead too", A, 1), worker="gone")
    world.change(Join("b5", B, 1))
    assert world.later(DEAD_SECONDS + 1) == ["b5"]
    assert world.queue.workers == {}


def test_what_is_reserved_is_corrected_and_given_back() -> None:
    world = World(ModelRate(tokens_per_minute=100, requests_per_minute=50))
    assert world.change(Join("x", A, 60), Join("y", A, 60)) == ["x"]
    assert world.change(Settle("x", 10)) == ["y"]
    assert world.change(Join("z", A, 60)) == []
    assert world.change(Leave("y")) == ["z"]
    assert world.change(Settle("z", None), Settle("z", 0)) == []  # unknown: the reservation stays
    assert world.queue.used(world.now) == (2, 70)
    world.change(Join("huge", A, 1_000_000))
    assert world.later(MINUTE + 1) == ["huge"]  # alone in its minute


def test_changes_are_idempotent() -> None:
    world = World(ModelRate(requests_per_minute=2))
    changes = [*joins(A, B, C), Accept("a0"), Settle("a0", 5), Leave("c2")]
    once = changed(world.queue, changes[:3], world.now, "w1", world.rate)
    once = changed(once, changes[3:], world.now, "w1", world.rate)
    again = changed(once, [Join("b1", B, 1), Accept("a0"), Settle("a0", 5), Leave("c2")], world.now, "w1", world.rate)
    assert again == once
    assert ModelQueue.model_validate_json(once.model_dump_json()) == once


@given(st.data())
def test_no_order_of_events_breaks_a_promise(data: st.DataObject) -> None:
    """Pause, window and rate hold at every moment; nobody is lost, and each project keeps its order."""
    rates = st.none() | st.builds(
        ModelRate, requests_per_minute=st.integers(1, 5), tokens_per_minute=st.integers(5, 50)
    )
    world = World(data.draw(rates))
    number, left = 0, set[str]()
    for kind in data.draw(
        st.lists(st.sampled_from(("join", "join", "answer", "refuse", "leave", "time")), max_size=60)
    ):
        worker = data.draw(st.sampled_from(WORKERS))
        out = sorted(sent.ticket for sent in world.queue.sent)
        if kind == "join":
            number += 1
            project, tokens = data.draw(st.sampled_from((A, B, C))), data.draw(st.integers(1, 20))
            world.change(Join(f"{number:03}", project, tokens), worker=worker)
        elif kind == "time":
            world.later(data.draw(st.sampled_from((0.01, 1, RENEW_SECONDS, 30))))
        elif kind == "leave":
            anyone = sorted([*out, *(one.ticket for one in world.queue.waiting)])
            if anyone:
                left.add(ticket := data.draw(st.sampled_from(anyone)))
                world.change(Leave(ticket))
        elif out:
            ticket = data.draw(st.sampled_from(out))
            until = world.now + data.draw(st.sampled_from((0.5, 20)))
            answer = [Accept(ticket), Settle(ticket, data.draw(st.integers(0, 20)))]
            world.change(*([Refuse(ticket, until)] if kind == "refuse" else answer))
    assert len({ticket for _, ticket in world.sent}) == len(world.sent), "somebody went twice"
    world.later(MINUTE * (number + 1))
    everybody = {f"{each:03}" for each in range(1, number + 1)}
    assert everybody - {ticket for _, ticket in world.sent} <= left, "somebody never went"
    if world.rate is not None and world.rate.requests_per_minute is not None:
        kept = [at for at, ticket in world.sent if ticket not in left]
        for at in kept:
            assert sum(at <= other < at + 60 for other in kept) <= world.rate.requests_per_minute
    by_project: dict[ProjectId, list[str]] = defaultdict(list)
    for _, ticket in world.sent:
        by_project[world.projects[ticket]].append(ticket)
    assert all(tickets == sorted(tickets) for tickets in by_project.values()), "not in order within a project"


@given(st.lists(st.sampled_from((A, B, C)), min_size=1, max_size=30))
def test_between_two_of_a_project_every_other_that_waits_has_its_turn(projects: list[ProjectId]) -> None:
    world = World(ModelRate(requests_per_minute=1))
    world.change(Refuse(None, world.now + 1), *joins(*projects))
    order = [world.projects[ticket] for ticket in world.later(MINUTE * 40)]
    assert sorted(order) == sorted(projects)
    left = {project: projects.count(project) for project in (A, B, C)}
    since: dict[ProjectId, set[ProjectId]] = {project: set() for project in (A, B, C)}
    seen: set[ProjectId] = set()
    for project in order:
        if project in seen:
            assert {other for other in left if left[other] and other != project} <= since[project]
        seen.add(project)
        left[project] -= 1
        since[project] = set()
        for other, served in since.items():
            if other != project:
                served.add(project)


def test_the_longest_pattern_says_the_rate_of_a_model() -> None:
    rates = {name: ModelRate(requests_per_minute=n) for n, name in enumerate(("*", "openai/*", "openai/gpt-4o"), 1)}
    found = [rate_of(rates, model) for model in ("local/x", "openai/gpt-4o-mini", "openai/gpt-4o")]
    assert [rate and rate.requests_per_minute for rate in found] == [1, 2, 3]
    assert rate_of({}, "local/x") is None
    assert rate_of({"openai/*": ModelRate(tokens_per_minute=1)}, "local/x") is None
