"""What a gateway reads for a request stays within the page that is asked for, however much the project has.

Planned as in `test_plans`, while the tables are empty. What a page is narrowed to (an agent, a channel, a conversation)
has an index of its own, so that it does not matter how rare that is. Of two at once the rarer is a filter.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.ledger.plans.test_plans import FILL as TURNS
from tests.ledger.plans.test_plans import Explained, Explaining, nodes
from tests.support.databases import Databases
from tests.support.ledger.agents import ALICE, CHANNEL, PROJECT, add_agents, begin, finish, lease
from turnstile.ledger.access import chats, now, pages, tasks
from turnstile.ledger.access.tokens import add_token, authenticate
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.trees.tree_views import tree
from turnstile.ledger.turns.views import describe_turn, find_conversations, list_conversation_turns
from turnstile.schema.access import GatewayRole, Secret, new_secret
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, ConversationId, StepId
from turnstile.schema.ledger_reads import ConversationLine, ConversationName

PAST = 20_000
PAGE = 50
ROWS = 4 * PAGE
"""Rows that one node of a plan may see: those of a page, and of the same moment."""
BUFFERS = 600
"""Pages that a request may touch."""
RARE, QUIET, SPOKEN = AgentId("rare"), ChannelId("quiet"), ConversationId("talk-7")
THEN = datetime.now(UTC) - timedelta(hours=12)
TALK = BoxId(str(UUID(hashlib.md5(b"b7").hexdigest())))  # noqa: S324 -- as PostgreSQL below
"""The box of 20 turns."""
NAMED = ConversationName(ALICE, ConversationId("talk-7"), CHANNEL)
FILL = [
    TURNS[0],
    *(turn for turn in TURNS[1:-1] if "agent_inbox" not in turn),
    """INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,
    turn_epoch, status, context_headers, payload, next_retry_at, created_at, archived_at, channel_id)
    SELECT 'i' || n, 'p1', CASE WHEN n % 4000 = 1 THEN 'rare' ELSE (ARRAY['alice', 'bob'])[n % 2 + 1] END,
    'turn', 'o' || n, 't' || n, n, 'consumed', '{}',
    jsonb_build_object('output_box_id', md5('b' || n / 20)::uuid, 'conversation_id', 'talk-' || n / 20),
    now(), now() - make_interval(secs => n * 4), now(), CASE WHEN n % 4000 = 2 THEN 'quiet' ELSE 'public' END
    FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.conversations (project_id, channel_id, agent_id, conversation_id, output_box_id, turn_count,
    created_at, updated_at)
    SELECT 'p1', CASE WHEN n % 4000 = 2 THEN 'quiet' ELSE 'public' END,
    CASE WHEN n % 4000 = 1 THEN 'rare' ELSE 'alice' END, 'talk-' || n, md5('b' || n)::uuid, 20,
    now() - make_interval(secs => n * 4), now() - make_interval(secs => n % 977) FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.gateway_tokens (token_id, project_id, role, secret_hash)
    SELECT 'k' || n, 'p1', 'client', decode(md5('a' || n) || md5('b' || n), 'hex')
    FROM generate_series(1, $1::int) n""",
    TURNS[-1],
]


def reads(turn: AgentTurnId, secret: Secret) -> dict[str, Callable[[Connection], Awaitable[object]]]:
    """Every statement of a request that reads."""
    place, box_place = pages.PageCursor(THEN, "t5"), pages.PageCursor(THEN, TALK)
    nothing = {"channel": None, "agent": None}
    line = ConversationLine(
        conversation_id=ConversationId("talk-7"),
        agent_id=ALICE,
        channel_id=CHANNEL,
        output_box_id=TALK,
        turn_count=20,
        last_turn_id=None,
        created_at=THEN,
        updated_at=THEN,
    )

    def turns(
        before: pages.PageCursor | None,
        channel: ChannelId | None = None,
        agent: AgentId | None = None,
        conversation: ConversationId | None = None,
    ) -> Callable[[Connection], Awaitable[object]]:
        return lambda conn: pages.page_turns(
            conn, PROJECT, channel=channel, agent=agent, conversation=conversation, before=before, row_limit=PAGE
        )

    def told(channel: ChannelId | None, agent: AgentId | None) -> Callable[[Connection], Awaitable[object]]:
        return lambda conn: now.page_turns_with_use(conn, PROJECT, channel=channel, agent=agent, row_limit=PAGE)

    def talks(channel: ChannelId | None, agent: AgentId | None) -> Callable[[Connection], Awaitable[object]]:
        return lambda conn: pages.page_conversations(
            conn, PROJECT, channel=channel, agent=agent, before=None, row_limit=PAGE
        )

    scope = tasks.TaskScope(project_id=PROJECT, channel_id=None, agent_id=RARE, profile_name=None)

    quiet = scope.model_copy(update={"channel_id": QUIET, "agent_id": ALICE})

    def listed(
        conversation: ConversationId | None, before: pages.PageCursor | None = None, scope: tasks.TaskScope = scope
    ) -> Callable[[Connection], Awaitable[object]]:
        return lambda conn: tasks.page_tasks(
            conn,
            scope,
            conversation=conversation,
            before=before,
            with_artifacts=True,
            with_history=True,
            row_limit=PAGE,
        )

    return {
        "find_tokens": lambda conn: authenticate(conn, [secret]),
        "describe_turn": lambda conn: describe_turn(conn, PROJECT, turn),
        "list_turn_progress": lambda conn: pages.list_turn_progress(conn, PROJECT, turn),
        "list_turn_progress of a step": lambda conn: pages.list_turn_progress(
            conn, PROJECT, turn, known_steps=[StepId(f"{turn}-s1")]
        ),
        "page_turns": turns(None),
        "page_turns after a place": turns(place),
        "page_turns of an agent": turns(place, agent=ALICE),
        "page_turns of a channel": turns(place, channel=CHANNEL),
        "page_turns of a rare agent": turns(None, agent=RARE),
        "page_turns of a rare agent after a place": turns(place, agent=RARE),
        "page_turns of a quiet channel": turns(None, channel=QUIET),
        "page_turns of an agent in a quiet channel": turns(None, agent=ALICE, channel=QUIET),
        "page_turns of a conversation": turns(None, conversation=SPOKEN),
        "page_turns of an agent's conversation": turns(place, agent=ALICE, conversation=SPOKEN),
        "page_turns_with_use of a rare agent": told(None, RARE),
        "page_turns_with_use of a quiet channel": told(QUIET, None),
        "page_conversations of a rare agent": talks(None, RARE),
        "page_conversations of a quiet channel": talks(QUIET, None),
        "page_tasks of a rare agent": listed(None),
        "page_tasks of a rare agent after a place": listed(None, place),
        "page_tasks of a conversation": listed(SPOKEN),
        "page_tasks of an agent in a quiet channel": listed(None, scope=quiet),
        "read_tasks": lambda conn: tasks.read_tasks(conn, PROJECT, [turn], with_history=True),
        "count_tasks of an agent in a quiet channel": lambda conn: tasks.count_tasks(
            conn, quiet, conversation=None, most=PAGE
        ),
        "list_recent_conversations of a rare agent": lambda conn: chats.list_recent_conversations(
            conn, PROJECT, agent=RARE, looked_through=ROWS, row_limit=PAGE
        ),
        "list_recent_conversations of a quiet channel": lambda conn: chats.list_recent_conversations(
            conn, PROJECT, channel=QUIET, looked_through=ROWS, row_limit=PAGE
        ),
        "count_tasks of a rare agent": lambda conn: tasks.count_tasks(conn, scope, conversation=None, most=PAGE),
        "count_tasks of a conversation": lambda conn: tasks.count_tasks(conn, scope, conversation=SPOKEN, most=PAGE),
        "page_conversations": lambda conn: pages.page_conversations(
            conn, PROJECT, before=None, row_limit=PAGE, **nothing
        ),
        "page_conversations after a place": lambda conn: pages.page_conversations(
            conn, PROJECT, before=box_place, row_limit=PAGE, **nothing
        ),
        "page_conversations of an agent": lambda conn: pages.page_conversations(
            conn, PROJECT, before=box_place, row_limit=PAGE, channel=None, agent=ALICE
        ),
        "find_conversations": lambda conn: find_conversations(
            conn, PROJECT, ConversationId("talk-7"), None, None, row_limit=2
        ),
        "list_last_turns": lambda conn: pages.list_last_turns(conn, PROJECT, line, row_limit=PAGE),
        "list_turns_after": lambda conn: pages.list_turns_after(
            conn, PROJECT, line, pages.TurnAt(AgentTurnId("t145"), 145), row_limit=PAGE
        ),
        "find_turn_place": lambda conn: pages.find_turn_place(conn, PROJECT, line, AgentTurnId("t145")),
        "list_conversation_turns": lambda conn: list_conversation_turns(conn, PROJECT, NAMED, row_limit=PAGE),
        "look_at_live_turns": lambda conn: now.look_at_live_turns(conn, PROJECT, channel=None, row_limit=PAGE),
        "look_at_live_turns of one": lambda conn: now.look_at_live_turns(
            conn, PROJECT, channel=CHANNEL, turn=turn, row_limit=1
        ),
        "page_turns_with_use": lambda conn: now.page_turns_with_use(conn, PROJECT, channel=None, row_limit=PAGE),
        "page_turns_with_use that ended": lambda conn: now.page_turns_with_use(
            conn, PROJECT, channel=CHANNEL, status="ended", before=place, row_limit=PAGE
        ),
        "list_tree": lambda conn: tree(conn, PROJECT, turn, channel=CHANNEL, row_limit=PAGE),
        "describe_place": lambda conn: now.describe_place(conn, PROJECT, turn),
        "list_turn_calls": lambda conn: now.list_turn_calls(conn, PROJECT, turn),
        "list_turn_inputs": lambda conn: now.list_turn_inputs(conn, PROJECT, TALK, row_limit=PAGE),
        "list_cards_of_steps": lambda conn: now.list_cards_of_steps(
            conn, PROJECT, turn, [StepId(f"{turn}-s1")], [CardId(f"{turn}-deliverable")]
        ),
        "list_recent_conversations": lambda conn: chats.list_recent_conversations(
            conn, PROJECT, looked_through=ROWS, row_limit=PAGE
        ),
        "list_chats": lambda conn: chats.list_chats(conn, PROJECT, [NAMED]),
        "list_chat_turns": lambda conn: chats.list_chat_turns(conn, PROJECT, NAMED, row_limit=PAGE),
        "list_chat_turns before a place": lambda conn: chats.list_chat_turns(
            conn, PROJECT, NAMED, before=place, row_limit=PAGE
        ),
        "list_chat_cards": lambda conn: chats.list_chat_cards(conn, PROJECT, [turn], row_limit=PAGE),
        "is_box_of_channel": lambda conn: pages.is_box_of_channel(conn, PROJECT, CHANNEL, TALK),
    }


READS = list(reads(AgentTurnId(""), new_secret()))


@pytest.fixture(scope="module")
async def grown(
    databases: Databases, migrated: str
) -> AsyncIterator[tuple[Explaining, dict[str, Callable[[Connection], Awaitable[object]]]]]:
    """A session that has known its database since it was empty, and what it reads."""
    name = await databases.create(migrated)
    pool = Pool(databases.url(name), size=3)
    await add_agents(pool, ALICE)
    secret, _ = await pool.run(lambda conn: add_token(conn, PROJECT, GatewayRole.CLIENT))
    ended = await lease(pool, ALICE)
    await begin(pool, ended)
    await finish(pool, ended)
    async with pool.connection() as conn:
        session, found = Explaining(conn), reads(ended.agent_turn_id, secret)
        for read in found.values():
            await read(session)
        async with pool.connection() as filling:
            for fill in FILL:
                await filling.fetch(fill, *([PAST] if "$1" in fill else []))
        session.explains = True
        yield session, found
    await pool.close()
    await databases.drop(name)


@pytest.mark.parametrize("name", READS)
async def test_a_request_reads_a_page(
    grown: tuple[Explaining, dict[str, Callable[[Connection], Awaitable[object]]]], name: str
) -> None:
    session, found = grown
    with pytest.raises(Explained):
        await found[name](session)
    for node in nodes(session.plan):
        seen = node["Actual Rows"] + sum(node.get(f"Rows Removed by {how}", 0) for how in ("Filter", "Index Recheck"))
        where = (node["Node Type"], node.get("Relation Name"), node.get("Index Name"), seen, node["Actual Loops"])
        assert node["Node Type"] != "Seq Scan", where
        assert seen * node["Actual Loops"] <= ROWS, where
    assert session.plan["Shared Hit Blocks"] + session.plan["Shared Read Blocks"] <= BUFFERS
