"""docs/limits.md: what one caller may make, of each kind the same; many at once never exceed it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from tests.ledger.races.test_channel_races import WAITING
from tests.support.ledger.agents import ALICE, BOB, CHANNEL, PROJECT, ask, value
from tests.support.ledger.calls import sleeper
from tests.support.ledger.webhooks import put_webhook_of
from tests.support.waiting import Counting
from turnstile.ledger.pool import Pool
from turnstile.ledger.pushes.receivers import remove_receiver, set_receiver
from turnstile.ledger.pushes.webhooks import remove_webhook
from turnstile.ledger.roster import LOCAL, put_agent, remove_agent
from turnstile.ledger.turns.boxes import compose_box, fork_box, put_conversation
from turnstile.schema.errors import Limited, Refused
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, ReceiverId, made_box_id, new_box_id
from turnstile.schema.wire.box_requests import BoxMakeRequest
from turnstile.schema.wire.conversation_requests import ConversationPutRequest
from turnstile.schema.wire.limits import Admission, Maker
from turnstile.schema.wire.roster_requests import AgentPutRequest

MOST = 3


async def puts_agent(pool: Pool, name: str, maker: Maker) -> None:
    """An agent of this name is put on the roster."""
    wanted = AgentPutRequest(agent_id=AgentId(name), profile_name="helper")
    await put_agent(pool, PROJECT, wanted, LOCAL, maker)


async def makes_box(pool: Pool, name: str, maker: Maker) -> None:
    """A box with one card is made under this name."""
    box, wanted = made_box_id(PROJECT, name), BoxMakeRequest.model_validate({"parts": [{"text": name}]})
    await pool.run(lambda conn: compose_box(conn, PROJECT, CHANNEL, wanted, box, "someone", maker))


async def forks_box(pool: Pool, name: str, maker: Maker) -> None:
    """A box of nobody, with one card, is copied under this name."""
    await makes_box(pool, "source", Maker(None))
    source, box = made_box_id(PROJECT, "source"), made_box_id(PROJECT, name)
    await pool.run(lambda conn: fork_box(conn, PROJECT, CHANNEL, source, box, maker))


async def puts_conversation(pool: Pool, name: str, maker: Maker) -> None:
    """A conversation of this name is made."""
    wanted = ConversationPutRequest.model_validate({"conversation_id": name})
    await pool.run(lambda conn: put_conversation(conn, PROJECT, CHANNEL, wanted, made_box_id(PROJECT, name), maker))


async def sets_receiver(pool: Pool, name: str, maker: Maker) -> None:
    """A receiver of this name is told of a turn of its own."""
    turn = (await ask(pool, correlation_id=name)).reply.agent_turn_id
    assert turn is not None
    where = PROJECT, CHANNEL, turn, ReceiverId(name)
    await pool.run(lambda conn: set_receiver(conn, *where, url="https://x/", token=None, maker=maker))


async def sets_webhook(pool: Pool, name: str, maker: Maker) -> None:
    """The webhook of a turn of this name, which has not begun."""
    turn = (await ask(pool, correlation_id=name)).reply.agent_turn_id
    assert turn is not None
    await pool.run(lambda conn: put_webhook_of(conn, turn, maker))


async def drops_webhook(pool: Pool, name: str) -> None:
    """The webhooks of the turn are removed."""
    turn = await value(pool, "SELECT agent_turn_id FROM state.agent_inbox WHERE correlation_id = $1", name)
    await pool.run(lambda conn: remove_webhook(conn, PROJECT, turn))


async def removes_agent(pool: Pool, name: str) -> None:
    """The agent is removed."""
    await pool.transact(lambda conn: remove_agent(conn, PROJECT, AgentId(name)))


async def uses_box(pool: Pool, name: str) -> None:
    """A turn goes on from the box."""
    await ask(pool, BOB, instruction=None, context_box_id=made_box_id(PROJECT, name))


async def gives_conversation(pool: Pool, name: str) -> None:
    """An agent gets the conversation."""
    wanted = ConversationPutRequest.model_validate({"conversation_id": name, "agent_id": BOB})
    await pool.run(lambda conn: put_conversation(conn, PROJECT, CHANNEL, wanted, new_box_id()))


async def drops_receiver(pool: Pool, name: str) -> None:
    """The receiver is removed."""
    turn = await value(pool, "SELECT agent_turn_id FROM state.push_receivers WHERE receiver_id = $1", name)
    await pool.run(lambda conn: remove_receiver(conn, PROJECT, CHANNEL, AgentTurnId(turn), ReceiverId(name)))


@dataclass(frozen=True)
class Kind:
    """Something that callers make: how, how one is used up, and which limit it has."""

    make: Callable[[Pool, str, Maker], Awaitable[None]]
    free: Callable[[Pool, str], Awaitable[None]]
    setting: str
    code: str

    def maker(self, name: str, most: int = MOST) -> Maker:
        """A caller who may have this many."""
        return Maker(name, Admission(**{self.setting: most}))

    async def made(self, pool: Pool, name: str, maker: Maker) -> str:
        """`made`, or why not."""
        try:
            await self.make(pool, name, maker)
        except Limited as error:
            return error.code if f"[limits].{self.setting}" in str(error) else str(error)
        return "made"


KINDS = {
    "agents": Kind(puts_agent, removes_agent, "max_agents", "agents_full"),
    "boxes": Kind(makes_box, uses_box, "max_unused_boxes", "boxes_full"),
    "forks": Kind(forks_box, uses_box, "max_unused_boxes", "boxes_full"),
    "cards": Kind(makes_box, uses_box, "max_unused_cards", "cards_full"),
    "cards of forks": Kind(forks_box, uses_box, "max_unused_cards", "cards_full"),
    "conversations": Kind(puts_conversation, gives_conversation, "max_unused_conversations", "conversations_full"),
    "receivers": Kind(sets_receiver, drops_receiver, "max_open_pushes", "pushes_full"),
    "webhooks": Kind(sets_webhook, drops_webhook, "max_open_pushes", "pushes_full"),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_a_caller_makes_as_many_as_the_limit_and_others_are_not_affected(counting: Counting, kind: Kind) -> None:
    eve, dora = kind.maker("token.eve"), kind.maker("token.dora")
    names = [f"n{number}" for number in range(8)]
    answers = await asyncio.gather(*(kind.made(counting, name, eve) for name in names))
    assert Counter(answers) == {"made": MOST, kind.code: len(names) - MOST}
    first = names[answers.index("made")]
    assert await kind.made(counting, first, eve) == "made"  # it is there: a repeat adds none
    assert [await kind.made(counting, f"d{number}", dora) for number in range(MOST + 1)] == ["made"] * MOST + [
        kind.code
    ]
    await kind.free(counting, first)
    assert [await kind.made(counting, name, eve) for name in ("e1", "e2")] == ["made", kind.code]
    assert await kind.made(counting, "e3", kind.maker("token.eve", 0)) == "made"
    assert await kind.made(counting, "e4", Maker(None)) == "made"


@pytest.mark.parametrize("way", WAITING)
async def test_a_box_is_unused_until_a_turn_or_a_conversation_has_it(counting: Counting, way: str) -> None:
    """An enqueue that is refused does not use it."""
    kind = KINDS["boxes"]
    eve = kind.maker("token.eve", 1)
    await kind.make(counting, "one", eve)
    box: BoxId = made_box_id(PROJECT, "one")
    with pytest.raises(Refused):
        await ask(counting, AgentId("nobody"), instruction=None, context_box_id=box)
    assert await kind.made(counting, "two", eve) == "boxes_full"
    await sleeper(counting, "call", agent=BOB)
    act, _ = WAITING[way]
    assert await act(counting, box) == "accepted"
    assert await kind.made(counting, "two", eve) == "made"


async def test_two_first_readers_of_a_box_do_not_deadlock(counting: Counting) -> None:
    eve = Maker("token.eve")
    await makes_box(counting, "one", eve)
    box = made_box_id(PROJECT, "one")
    await asyncio.gather(*(ask(counting, agent, context_box_id=box) for agent in (ALICE, BOB) for _ in range(4)))
    assert await value(counting, "SELECT unused_of FROM public.boxes WHERE box_id = $1::text::uuid", box) is None
