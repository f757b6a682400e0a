"""The text of a step is told after everything before it, however early it comes."""

from datetime import UTC, datetime
from typing import Any, cast

from turnstile.gateway.events.feed import Sources, TurnFeed
from turnstile.gateway.events.positions import BEGIN
from turnstile.ledger.access.pages import TurnCard
from turnstile.schema.cards import CardType, Role, ToolResultContent, make_card
from turnstile.schema.ids import AgentTurnId, CardId, StepId, ToolCallId, step_id
from turnstile.schema.states import ChunkType, TurnStatus
from turnstile.schema.wire.descriptions import TurnView
from turnstile.schema.wire.events import Chunk

TURN = AgentTurnId("t-1")
VIEW = TurnView.model_validate(
    {
        **dict.fromkeys(TurnView.model_fields),
        "agent_turn_id": TURN,
        "project_id": "p",
        "agent_id": "a",
        "channel_id": "c",
        "inbox_id": "i",
        "inbox_status": "consumed",
        "status": "running",
        "created_at": datetime.now(UTC),
        "steps": 1,
        "reruns": (),
    }
)


class NoServers:
    """A connection that is there, and a ledger whose rows the test gives."""

    reconnects = -1

    def __init__(self) -> None:
        self.rows: list[TurnCard] = []

    async def run(self, _: object) -> Any:
        self.asked = not getattr(self, "asked", False)
        return None if self.asked else self.rows


async def test_a_steps_text_waits_for_the_results_before_it() -> None:
    servers = NoServers()
    feed = TurnFeed(Sources(cast("Any", servers), cast("Any", servers), 1000), VIEW)
    own = {"agent_turn_id": TURN, "step_id": StepId(step_id(TURN, 2)), "attempt": 1}
    chunk = Chunk.model_validate({**own, "index": 0, "chunk_type": ChunkType.CONTENT, "content": "found"})
    await feed._on_chunk("", chunk.model_dump_json().encode())
    assert feed.after(BEGIN) == []
    assert feed._hint.is_set()
    content = ToolResultContent(status=TurnStatus.SUCCESS, result=1)
    call = ToolCallId("t-1-s1-c0")
    card = make_card(CardId("r"), CardType.TOOL_RESULT, Role.TOOL, content, author="tool.x", tool_call=call)
    first = StepId(step_id(TURN, 1))
    servers.rows = [TurnCard(first, 1, 0, 0, None, "completed", None), TurnCard(first, 3, 1, 0, card, None, None)]
    await feed._look()
    assert [(each.position.step, each.position.part) for each in feed.after(BEGIN)] == [(1, 2), (1, 3), (2, 0)]
