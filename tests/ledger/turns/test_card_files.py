"""Files that cards name (protocol §22): kept while the card is, refused where they are not there for the channel."""

from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, CHANNEL, PROJECT, STARTED, begin, card, rows, value
from tests.support.ledger.calls import settle, sleeper, tell
from tests.support.ledger.trees import answer, forks, in_hand
from tests.support.waiting import Counting, overtaken
from turnstile.ledger.files.artifacts import FileLimits, begin_artifact, commit_artifact, file_parts, remove_artifact
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.boxes import compose_box
from turnstile.ledger.turns.cards import box_cards
from turnstile.ledger.turns.ends import finish_turn
from turnstile.ledger.turns.intake import Enqueued, enqueue
from turnstile.rules.resume import termination
from turnstile.rules.turn_ends import Ending
from turnstile.rules.turn_step import StepRecord
from turnstile.schema.access import Caller
from turnstile.schema.cards import Card, CardType, FilePart, TextContent, content_of, parts_of, with_lines
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ArtifactId, ChannelId, new_box_id
from turnstile.schema.states import AfterExecution, TurnStatus
from turnstile.schema.step_metadata import EndMetadata
from turnstile.schema.wire.box_requests import BoxMakeRequest
from turnstile.schema.wire.file_requests import FileBegin
from turnstile.schema.wire.inbox import EnqueueRequest

REFS = "SELECT artifact_id, card_id FROM state.artifact_refs ORDER BY artifact_id, card_id"


async def keep(pool: Pool, name: str, channel: str = CHANNEL, *, ready: bool = True) -> ArtifactId:
    """A file."""
    file, where = ArtifactId(name), ChannelId(channel)
    request = FileBegin(filename=f"a/../{name}.png", mime="image/png", size=3)

    async def written(conn: Connection) -> None:
        await begin_artifact(
            conn, PROJECT, where, file, request, storage_uri=f"file:///{name}", created_by="ada", limits=FileLimits()
        )
        if ready:
            await commit_artifact(conn, PROJECT, where, file, size=3, sha256="0" * 64, limits=FileLimits())

    await pool.run(written)
    return file


async def parts(pool: Pool, *files: str) -> tuple[FilePart, ...]:
    return await pool.run(lambda conn: file_parts(conn, PROJECT, [ArtifactId(file) for file in files]))


async def asked(pool: Pool, *files: str, **more: Any) -> Enqueued:
    """An enqueue with these files."""
    request = EnqueueRequest.model_validate({"agent_id": ALICE, "files": list(files), **more})
    how: dict[str, Any] = {"depth_limit": 20, "sender": "ada", "caller": Caller("root", operates=True)}
    return await enqueue(pool, PROJECT, CHANNEL, request, {}, files=await parts(pool, *files), **how)


async def refs(pool: Pool) -> set[tuple[str, str]]:
    """Which cards name which files."""
    return {(row["artifact_id"], row["card_id"]) for row in await rows(pool, REFS)}


async def only_card(pool: Pool, turn: Enqueued) -> Card:
    box = turn.reply.context_box_id
    assert box is not None
    cards = await pool.run(lambda conn: box_cards(conn, PROJECT, box))
    assert cards is not None
    [only] = cards
    return only


async def test_an_instruction_names_its_files_and_has_a_line_for_each(agents: Pool) -> None:
    for name in ("f1", "f2"):
        await keep(agents, name)
    made = await only_card(agents, await asked(agents, "f2", "f1", "f2", instruction="What is this?"))
    line = "[file: {0}.png (image/png, 3 bytes), artifact_id {0}]"
    content = content_of(made)
    assert isinstance(content, TextContent)
    assert content.text == f"What is this?\n{line.format('f2')}\n{line.format('f1')}"
    assert [part.artifact_id for part in parts_of(made)] == ["f2", "f1"]
    assert await refs(agents) == {("f1", made.card_id), ("f2", made.card_id)}


async def test_files_alone_are_an_instruction(agents: Pool) -> None:
    await keep(agents, "f1")
    made = await only_card(agents, await asked(agents, "f1"))
    assert content_of(made).model_dump()["text"] == with_lines("", parts_of(made))


@pytest.mark.parametrize("state", ["unknown", "uploading", "removed", "other"])
async def test_a_file_that_is_not_ready_in_the_channel_undoes_the_enqueue(agents: Pool, state: str) -> None:
    await keep(agents, "good")
    if state != "unknown":
        await keep(agents, "bad", "elsewhere" if state == "other" else CHANNEL, ready=state != "uploading")
    if state == "removed":
        await agents.run(lambda conn: remove_artifact(conn, PROJECT, ArtifactId("bad")))
    with pytest.raises(Refused) as refused:
        await asked(agents, "good", "bad", correlation_id="one")
    assert refused.value.code == "unknown_artifact"
    assert await refs(agents) == set()
    assert await value(agents, "SELECT count(*) FROM state.agent_inbox") == 0
    assert (await asked(agents, "good", correlation_id="one")).is_new


INSERT = (
    "EXPLAIN (ANALYZE, COSTS OFF) INSERT INTO cards (card_id, tenant_id, content, metadata) VALUES ($1, $2, '{}', $3)"
)


async def test_a_card_without_files_fires_no_trigger(agents: Pool) -> None:
    await keep(agents, "f1")
    fired = {}
    for name, metadata in {"plain": "{}", "named": f'{{"artifacts": ["f1"], "channel_id": "{CHANNEL}"}}'}.items():
        plan = await rows(agents, INSERT, name, PROJECT, metadata)
        fired[name] = any("cards_refer" in row["QUERY PLAN"] for row in plan)
    assert fired == {"plain": False, "named": True}


async def test_the_files_of_a_result_are_those_of_the_deliverable_that_it_makes(agents: Pool) -> None:
    for name in ("f1", "f2"):
        await keep(agents, name)
    await keep(agents, "abroad", "elsewhere")
    turn = await sleeper(agents, "c1")
    for file in ("abroad", "nobody"):
        with pytest.raises(Refused, match="no file"):
            await tell(agents, "c1", files=[file])
    told = await tell(agents, "c1", files=["f2", "f1"], after_execution=AfterExecution.TERMINATE)
    assert told.reply.inbox_id is not None
    await settle(agents, turn, told.reply.inbox_id)
    # an operator removes one meanwhile: what copies the result keeps its line
    await agents.run(lambda conn: remove_artifact(conn, PROJECT, ArtifactId("f1")))
    begun = await begin(agents, turn, 2)
    ended = termination(turn, begun.head.answered, begun.output, {})
    assert ended is not None
    assert [part.artifact_id for part in parts_of(ended.deliverable)] == ["f2", "f1"]
    ending = Ending(ended.status, ended.deliverable.card_id, None, None, ended.tool_result)
    await agents.run(lambda conn: finish_turn(conn, turn, ending, cards=[ended.deliverable]))
    cards = {"c1-result", ended.deliverable.card_id}
    assert await refs(agents) == {(file, made) for file in ("f1", "f2") for made in cards}


async def test_the_files_of_a_child_are_those_of_the_answer_to_its_parent(agents: Pool) -> None:
    for name in ("f0", "f1"):
        await keep(agents, name)
    await sleeper(agents, "c1")
    made = await forks(agents, "c1", 3)
    for index, task in enumerate(made.tasks):
        child = await in_hand(agents, task.agent_turn_id)
        await begin(agents, child)
        files = await parts(agents, f"f{index}") if index < 2 else ()
        last = card(child, 1, "deliverable", CardType.DELIVERABLE)
        content = TextContent(text=with_lines("done", files), parts=files)
        named = last.metadata.model_copy(update={"artifacts": tuple(part.artifact_id for part in files) or None})
        last = last.model_copy(update={"content": content.model_dump(mode="json"), "metadata": named})
        record = StepRecord(1, EndMetadata(), [last], [], STARTED)
        await agents.run(
            lambda conn, child=child, record=record, last=last: finish_turn(
                conn, child, Ending(TurnStatus.SUCCESS, last.card_id), record=record
            )
        )
    told = await answer(agents, "c1")
    assert [part["artifact_id"] for part in told["parts"]] == ["f0", "f1"]
    assert {file for file, made in await refs(agents) if made == "c1-result"} == {"f0", "f1"}


async def test_a_box_of_parts_names_files(agents: Pool) -> None:
    await keep(agents, "f1")
    await keep(agents, "abroad", "elsewhere")

    async def box(file: str) -> str:
        request = BoxMakeRequest.model_validate({"parts": [{"text": "see", "files": [file]}]})
        made = new_box_id()
        await agents.run(lambda conn: compose_box(conn, PROJECT, ChannelId(CHANNEL), request, made, "ada"))
        return made

    made = await box("f1")
    assert await refs(agents) == {("f1", f"{made}-1")}
    with pytest.raises(Refused, match="no file"):
        await box("abroad")


async def test_references_go_with_their_card(agents: Pool) -> None:
    await keep(agents, "f1")
    made = await only_card(agents, await asked(agents, "f1", instruction="x"))
    async with agents.connection() as conn, conn.transaction():
        await conn.execute("SET LOCAL turnstile.retention = 'on'")
        await conn.execute("DELETE FROM box_cards WHERE card_id = $1", made.card_id)
        await conn.execute("DELETE FROM cards WHERE card_id = $1", made.card_id)
    assert await refs(agents) == set()


async def test_a_removal_beside_a_new_reference_waits_or_is_found(counting: Counting) -> None:
    await keep(counting, "f1")
    named = await parts(counting, "f1")

    async def refer(conn: Connection) -> None:
        content = TextContent(text="x", parts=named).model_dump_json()
        metadata = f'{{"artifacts": ["f1"], "channel_id": "{CHANNEL}", "type": "task.instruction"}}'
        statement = "INSERT INTO cards (card_id, tenant_id, content, metadata) VALUES ('card', $1, $2, $3)"
        await conn.fetch(statement, PROJECT, content, metadata)

    async def remove(conn: Connection) -> None:
        await remove_artifact(conn, PROJECT, ArtifactId("f1"))

    await overtaken(counting, refer, counting.run(remove))
    assert await refs(counting) == {("f1", "card")}
    await keep(counting, "f2")
    with pytest.raises(Refused) as refused:
        await overtaken(
            counting,
            lambda conn: remove_artifact(conn, PROJECT, ArtifactId("f2")),
            asked(counting, "f2", instruction="x"),
        )
    assert refused.value.code == "unknown_artifact"
