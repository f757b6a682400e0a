"""Files of turns: asked with, shown to the model, read in parts, gone meanwhile (protocol §22)."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.rules.test_model_files import pdf, png
from tests.support import delegation
from tests.support.tenants import ALICE, Tenant, turn_of
from tests.support.tools import call_of, calling, hand_of
from turnstile import ToolCall, ToolService
from turnstile.schema.cards import CardType, ToolResultContent, content_of, parts_of

LONG = ("line of a long text\n" * 3000).encode()


async def kept(web: httpx.AsyncClient, name: str, data: bytes, mime: str = "application/octet-stream") -> str:
    answer = await web.post("/v1/artifacts", content=data, params={"filename": name}, headers={"content-type": mime})
    assert answer.status_code == 201, answer.text
    return answer.json()["artifact_id"]


async def asked(web: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """A turn that is over."""
    answer = await web.post("/v1/turns", json={"agent_id": ALICE, **fields}, headers={"prefer": "wait=25"})
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.fixture
async def looking(tenant: Tenant) -> Tenant:
    """A project whose agent says what it is shown."""
    await tenant.agent("look", memory={"keep": "conversation", "keep_files": 2})
    return tenant


async def test_a_model_is_shown_the_files_of_its_turn(web: httpx.AsyncClient, looking: Tenant) -> None:
    picture = await kept(web, "a/../evil\u202egnp.png", png(30, 20), "text/html")
    words = await kept(web, "words.txt", b"seven words", "image/png")
    turn = await asked(web, instruction="What is this?", files=[picture, words])
    said = turn["output"]["text"]
    assert "evilgnp.png (image/png, 30x20, 29 bytes)" in said
    assert "words.txt (image/png, 11 bytes)" in said
    assert "seven words" in said
    # the next turn of the conversation: only the newest two are sent again
    paper = await kept(web, "paper.pdf", pdf(3))
    said = (await asked(web, instruction="And this?", files=[paper]))["output"]["text"]
    assert "evilgnp.png (by name)" in said
    assert "paper.pdf (application/pdf, 3 pages" in said
    assert "seven words" in said


async def test_what_models_do_not_take_is_named_with_the_reason(web: httpx.AsyncClient, looking: Tenant) -> None:
    large = await kept(web, "large.png", png(20_000, 20_000), "image/png")
    book = await kept(web, "n" * 500 + ".pdf", pdf(5_000), "application/pdf")
    said = (await asked(web, instruction="See", files=[large, book]))["output"]["text"]
    assert "20000 x 20000" in said
    assert "5000 pages" in said


@pytest.mark.parametrize("state", ["unknown", "other channel", "removed"])
async def test_a_file_that_is_not_there_for_the_channel_is_refused(
    web: httpx.AsyncClient, looking: Tenant, state: str
) -> None:
    file = "file-unknown"
    if state != "unknown":
        params = {"channel_id": "elsewhere"} if state == "other channel" else {}
        file = (await web.post("/v1/artifacts", content=b"x", params=params)).json()["artifact_id"]
    if state == "removed":
        await web.delete(f"/v1/artifacts/{file}")
    answer = await web.post("/v1/turns", json={"agent_id": ALICE, "instruction": "See", "files": [file]})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_artifact")


async def test_a_rerun_of_a_turn_whose_file_has_gone_says_so(web: httpx.AsyncClient, looking: Tenant) -> None:
    file = await kept(web, "gone.txt", b"some words")
    turn = await asked(web, instruction="See", files=[file])
    assert "some words" in turn["output"]["text"]
    await web.delete(f"/v1/artifacts/{file}")
    again = await web.post(f"/v1/turns/{turn['agent_turn_id']}/rerun", json={}, headers={"prefer": "wait=25"})
    assert again.status_code == 201, again.text
    assert "gone.txt" in again.json()["output"]["text"]
    assert "it was removed" in again.json()["output"]["text"]


async def test_bytes_that_the_store_lost_are_said_to_be_gone(web: httpx.AsyncClient, looking: Tenant) -> None:
    file = await kept(web, "lost.txt", b"some words")
    store = Path(looking.stack.settings.artifacts.store.removeprefix("file://"))
    (store / looking.project / file).unlink()
    assert "gone from the store" in (await asked(web, instruction="See", files=[file]))["output"]["text"]


async def test_a_store_that_does_not_answer_ends_the_turn_with_a_code(web: httpx.AsyncClient, looking: Tenant) -> None:
    file = await kept(web, "away.txt", b"some words")
    place = Path(looking.stack.settings.artifacts.store.removeprefix("file://")) / looking.project / file
    place.unlink()
    place.symlink_to(place)  # which no store opens
    turn = await asked(web, instruction="See", files=[file])
    place.unlink()
    assert (turn["status"], turn["error_code"]) == ("failed", "files_unavailable")


async def test_a_long_text_is_read_in_parts(web: httpx.AsyncClient, tenant: Tenant) -> None:
    """And nothing else: a file that no card of the turn names is as one that nobody has."""
    text, hidden = await kept(web, "long.txt", LONG), await kept(web, "h.txt", b"x")
    picture = await kept(web, "p", png(1, 1))
    agent = await tenant.agent("player")
    reads = [{"artifact_id": text, "offset": 20, "limit": 20}, {"artifact_id": hidden}, {"artifact_id": picture}]
    steps = {"steps": [calling(*(("read_file", arguments) for arguments in (*reads, {"offset": -1})))]}
    ended = await tenant.turn(agent, json.dumps(steps), files=[text, picture])
    results = [content_of(card) for card in ended.cards if card.type == CardType.TOOL_RESULT]
    first, *others = (content for content in results if isinstance(content, ToolResultContent))
    assert first.result == {
        "artifact_id": text,
        "offset": 20,
        "text": "line of a long text\n",
        "bytes": len(LONG),
        "left": len(LONG) - 40,
    }
    says = ["no file", "is no text", "do not fit"]
    assert [say in content.error.message for say, content in zip(says, others, strict=True) if content.error] == [
        True
    ] * 3


async def test_the_files_of_a_tool_are_those_of_the_answer(web: httpx.AsyncClient, tenant: Tenant) -> None:
    picture = await kept(web, "chart.png", png(30, 20))
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), {"text": "Here it is."})
        await hand.report(call_of(turn), files=[picture])
        ended = await tenant.ended(turn)
    [deliverable] = [card for card in ended.cards if card.type == CardType.DELIVERABLE]
    assert [part.artifact_id for part in parts_of(deliverable)] == [picture]
    assert str(ended.deliverable()).startswith("Here it is.\n[file: chart.png (")


async def test_a_python_tool_attaches_files_and_hears_of_one_that_is_not_there(
    web: httpx.AsyncClient, tenant: Tenant
) -> None:
    picture, service = await kept(web, "chart.png", png(30, 20)), ToolService(tenant.project)

    @service.tool(target="office", suffix="draw", timeout_seconds=30)
    async def draw(file: str, call: ToolCall) -> str:
        """Draw."""
        call.attach(file, file)
        return "drawn"

    del draw  # the service has it
    async with delegation.serving(tenant, service):
        said = delegation.steps(calling(("draw", {"file": picture}), ("draw", {"file": "file-nobodys"})))
        ended = await tenant.ended(turn_of(await tenant.enqueue(delegation.CHIEF, said)))
    [deliverable] = [card for card in ended.cards if card.type == CardType.DELIVERABLE]
    assert [part.artifact_id for part in parts_of(deliverable)] == [picture]
    assert sorted(result[1] or "" for result in ended.results()) == ["", "unknown_artifact"]


async def test_a_compaction_leaves_files_behind_since_they_count(web: httpx.AsyncClient, tenant: Tenant) -> None:
    """Two images take more than the memory may have; their words alone would fit."""
    await tenant.agent("look", memory={"keep": "conversation", "max_context_tokens": 1_500, "keep_last_turns": 0})
    for name, other in (("first.png", "second.png"), ("second.png", "first.png")):
        file = await kept(web, name, png(30, 20))
        said = (await asked(web, instruction="See", files=[file]))["output"]["text"]
        assert f"{name} (image/png, 30x20" in said
        assert other not in said
    assert await tenant.count("state.artifact_refs") == 2  # the cards are still there
