"""MCP as servers really speak it: one flaw costs what has it and nothing else (protocol §17.1).

Lists of tools, results and lines that the protocol does not have, each of a kind, on the rough server; and any JSON as
a result, by hypothesis.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types.methods import validate_server_result

from tests.sdk.tools.test_mcp_hostile import called, connected, entry_of, nobody, rough, tool, unheard
from tests.support.cpu import HELD_SECONDS, RUNS, Held, cheap, held
from tests.support.fuzz import Dice, Report, Tally
from turnstile.schema.errors import TurnstileError
from turnstile.schema.json_reading import read_json, storable_json
from turnstile.schema.parameters import checks
from turnstile.sdk.mcp.bounded_http import _BoundedBody
from turnstile.sdk.mcp.lenient import Halves, Lenient
from turnstile.sdk.mcp.lenient import call_result as mended_result
from turnstile.sdk.mcp.mcp_results import result_of
from turnstile.sdk.mcp.mcp_server import McpServer, tool_key
from turnstile.sdk.mcp.pacing import Pace
from turnstile.sdk.mcp.tool_pins import RemoteTool
from turnstile.sdk.tools.answer import answer as report_of

__all__ = ["held"]

CALL_SECONDS = 30.0
DRAFT_7 = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "definitions": {"n": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}},
    "properties": {"n": {"$ref": "#/definitions/n"}, "pair": {"items": [{"type": "string"}, {}]}},
}
LISTED: list[dict[str, Any]] = [
    tool("no-type", inputSchema={"properties": {"a": {"type": "string"}}}),
    {"name": "no-schema"},
    tool("null-schema", inputSchema=None),
    tool("or-null", inputSchema={"type": ["object", "null"]}),
    tool("one-of", inputSchema={"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
    tool("null-required", inputSchema={"type": "object", "properties": None, "required": None}),
    tool("null-within", inputSchema={"type": "object", "properties": {"required": None, "b": True}}),
    tool("draft-7", inputSchema=DRAFT_7),
    tool("draft-4", inputSchema={"properties": {"n": {"minimum": 0, "exclusiveMinimum": True}}, "type": "object"}),
    tool("int64", inputSchema={"type": "object", "properties": {"n": {"maximum": 2**64 - 1}}}),
    tool("a.b/c"),
    tool("x" * 200),
    tool("odd-notes", annotations={"readOnlyHint": "yes", "title": 3}, icons="none", _meta=7, title=None),
    tool("odd-output", outputSchema={"type": "string"}),
    tool("half", description="\ud83d \0"),
]
LEFT_OUT: list[tuple[Any, str, str]] = [
    (tool("text-schema", inputSchema="object"), "text-schema", "its input schema is none"),
    (tool("of-text", inputSchema={"type": "string"}), "of-text", "of type"),
    (tool("text-for-names", inputSchema={"type": "object", "properties": "a"}), "text-for-names", "protocol"),
    (
        tool("number-for-one", inputSchema={"type": "object", "properties": {"a": 1}}),
        "number-for-one",
        "no JSON schema",
    ),
    (tool("text-for-required", inputSchema={"type": "object", "required": "a"}), "text-for-required", "protocol"),
    (tool("pattern", inputSchema={"properties": {"a": {"pattern": "(?=a)"}}}), "pattern", "has pattern at"),
    ({"description": "nameless"}, "(without a name)", "no name"),
    (tool("hidden\u202ename"), "hidden\\u202ename", "nobody sees"),
]


async def test_a_tool_that_is_not_as_it_should_be_is_mended_or_left_out_and_the_others_work(tmp_path: Path) -> None:
    tools: list[Any] = LISTED + [each for each, _, _ in LEFT_OUT] + [7, None, tool("good")]
    entry = entry_of(tmp_path, tools, **{"a.b/c": {"content": [{"type": "text", "text": "done"}]}})
    async with connected("rough", entry, os.environ) as connection:
        listing = await connection.listing()
        mapped = listing.tools[tool_key("rough", "a.b/c")]
        assert result_of(entry, mapped, await called(connection, mapped.called)) == {"value": "done"}
    named = {tool_key("rough", each["name"]) for each in LISTED} | {"good"}
    assert set(listing.tools) == named
    for name, remote in listing.tools.items():
        assert len(remote.definition("rough", entry).tool_name) <= 64, name
        assert remote.parameters["type"] == "object"
    for _, name, why in LEFT_OUT:
        assert why in listing.left_out[name]
    number = checks(listing.tools["draft-7"].parameters)
    assert [number.fault({"n": n}) is None for n in (2**63 - 1, 2**63, 1.5)] == [True, False, False]
    exclusive = checks(listing.tools["draft-4"].parameters)
    assert [exclusive.fault({"n": n}) is None for n in (0, 1)] == [False, True]
    assert listing.tools["half"].description == "\ufffd"


TEXT = {"type": "text", "text": "x"}
ODD_PART = {"type": "video", "data": "AAAA", "mimeType": "video/mp4"}
RESULTS: dict[str, tuple[Any, object]] = {
    "no-content": ({}, {"value": None}),
    "null-content": ({"content": None, "structuredContent": None}, {"value": None}),
    "structured-alone": ({"structuredContent": {"n": 1}}, {"value": {"n": 1}}),
    "structured-list": ({"structuredContent": [1, 2]}, {"value": {"result": [1, 2]}}),
    "text-for-content": ({"content": "x"}, {"value": "x"}),
    "part-for-content": ({"content": TEXT}, {"value": "x"}),
    "texts-for-parts": ({"content": ["x", "y"]}, {"value": "x\ny"}),
    "number-for-a-text": ({"content": [{"type": "text", "text": 7}]}, {"value": "7"}),
    "odd-annotations": ({"content": [{**TEXT, "annotations": {"priority": "high"}}], "_meta": 1}, {"value": "x"}),
    "unknown-part": (
        {"content": [TEXT, ODD_PART]},
        {"value": "x", "content": [{"type": "video", "reason": "a part of this type is not read here"}]},
    ),
    "part-of-nothing": (
        {"content": [{}, 7]},
        {"value": None, "content": [{"type": "unknown", "reason": "a part of this type is not read here"}] * 2},
    ),
    "text-of-is-error": ({"content": [TEXT], "isError": "false"}, {"value": "x"}),
    "said-twice": (
        {"content": [{"type": "text", "text": '{"n": 1.0}'}], "structuredContent": {"n": 1}},
        {"value": {"n": 1}},
    ),
}
LINES: dict[str, tuple[str, object]] = {
    "half": (
        r'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a\ud83d"}]}}',
        {"value": "a\ufffd"},
    ),
    "pair": (
        r'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"\ud83d\ude00"}]}}',
        {"value": "😀"},
    ),
    "nul": (r'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a\u0000b"}]}}', {"value": "ab"}),
    "not-a-number": (
        '{"jsonrpc":"2.0","id":ID,"result":{"content":[],"structuredContent":{"n":NaN,"m":-Infinity}}}',
        {"value": {"n": None, "m": None}},
    ),
    "noise": ('INFO: done\n\n{"level": "info"}\n{"jsonrpc":"2.0","id":ID,"result":{}}', {"value": None}),
    "batch": ('[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":ID,"result":{}}]', {"value": None}),
    "id-as-a-text": ('{"jsonrpc":"2.0","id":"ID","result":{}}', {"value": None}),
    "id-as-a-float": ('{"jsonrpc":"2.0","id":ID.0,"result":{}}', {"value": None}),
    "no-version": ('{"id":ID,"result":{}}', {"value": None}),
    "result-of-text": ('{"jsonrpc":"2.0","id":ID,"result":"x"}', {"value": "x"}),
    "error-of-text": ('{"jsonrpc":"2.0","id":ID,"error":"no"}', "tool_error"),
    "error-without-a-code": ('{"jsonrpc":"2.0","id":ID,"error":{"code":"E1","message":7}}', "tool_error"),
    "no-json": ('{"jsonrpc":"2.0","id":ID,"result":{"content":[{"ty', "invalid_result"),
    "neither": ('{"jsonrpc":"2.0","id":ID}', "invalid_result"),
}


async def test_results_and_lines_are_read_as_they_are_meant_or_fail_their_call_at_once(tmp_path: Path) -> None:
    expected = {**{name: each[1] for name, each in RESULTS.items()}, **{name: each[1] for name, each in LINES.items()}}
    calls = {name: each[0] for name, each in RESULTS.items()} | {name: {"raw": each[0]} for name, each in LINES.items()}
    entry = entry_of(tmp_path, [tool(name) for name in calls], **calls)
    async with connected("rough", entry, os.environ) as connection:
        listing = await connection.listing()
        for name, right in expected.items():
            try:
                found: object = result_of(entry, listing.tools[name], await called(connection, name))
            except TurnstileError as error:
                found = error.code
            assert found == right, name


async def test_a_server_whose_handshake_is_not_whole_is_used(tmp_path: Path) -> None:
    async with rough(tmp_path, [tool("t")]) as connection:
        assert set((await connection.listing()).tools) == {"t"}
    lenient = Lenient()
    hello = {"protocolVersion": "2025-06-18", "capabilities": {"tools": True, "logging": None}, "serverInfo": None}
    assert lenient._mended("initialize", hello) == {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "", "version": ""},
    }


def _surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@given(st.text(st.characters(codec=None), max_size=20), st.lists(st.integers(1, 7), max_size=40))
def test_halves_of_pairs_are_replaced_wherever_the_bytes_are_cut(text: str, sizes: list[int]) -> None:
    data, halves, mended = json.dumps([text, "\\ud83d", "é"]).encode(), Halves(), b""
    for size in sizes:
        mended += halves.take(data[:size])
        data = data[size:]
    mended += halves.take(data) + halves.rest()
    assert json.loads(mended) == [_surrogates(text), "\\ud83d", "é"]


class _Body(httpx2.AsyncByteStream):
    """A response in small pieces."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._data), 3):
            yield self._data[at : at + 3]


@pytest.mark.parametrize("events", [False, True])
async def test_halves_of_pairs_are_replaced_over_http_too(*, events: bool) -> None:
    body = _BoundedBody(_Body(rb'{"a": "\ud83d", "b": "\ud83d\ude00"}'), Pace(), 1_000, events=events)
    assert json.loads(b"".join([chunk async for chunk in body])) == {"a": "\ufffd", "b": "😀"}


_ANY_TEXT = st.text(st.characters(codec=None), max_size=4)
_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | _ANY_TEXT
_NAMED = st.dictionaries(_ANY_TEXT, _LEAVES, max_size=3)
JSON = _LEAVES | st.lists(_LEAVES | _NAMED, max_size=3) | _NAMED | st.dictionaries(_ANY_TEXT, _NAMED, max_size=2)
KEYS = st.sampled_from(
    ["content", "structuredContent", "isError", "_meta", "type", "text", "data", "mimeType", "resource", "uri"]
)
RESULT = st.dictionaries(
    KEYS, JSON | st.lists(st.dictionaries(KEYS, JSON | st.sampled_from(["text", "image", "resource", "resource_link"])))
)
_ENTRY = McpServer(command=("x",))
_TOOL = RemoteTool("t", "t", "", {}, None, {}, "")


@given(RESULT)
def test_any_json_is_a_result_that_can_be_kept(result: dict[str, Any]) -> None:
    whole: Any = storable_json(result)
    if not isinstance(whole.get("_meta", {}), dict):
        del whole["_meta"]
    read = types.CallToolResult.model_validate(mended_result(whole), by_name=False)
    if read.is_error:
        with pytest.raises(TurnstileError):
            result_of(_ENTRY, _TOOL, read)
        return
    value = result_of(_ENTRY, _TOOL, read)
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert "\0" not in json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("name", ["a", "a-b_c", "x" * 30, "a b", "ä", "x" * 31, "\ud83d", ""])
def test_a_name_that_models_can_call_is_its_own_key_and_others_have_one(name: str) -> None:
    key = tool_key("s" * 32, name)
    assert len(f"{'s' * 32}__{key}") <= 64
    assert (key == name) == (name in ("a", "a-b_c", "x" * 30))
    assert key == tool_key("s" * 32, name)


@pytest.mark.fuzz
@pytest.mark.parametrize("cases", [600, pytest.param(20_000, marks=pytest.mark.long)])
def test_any_line_is_noise_or_messages_and_any_answer_a_result_or_an_error(cases: int, fuzz_report: Report) -> None:
    tally, seeds = Tally(), [{"result": each} for each, _ in RESULTS.values()]
    lists = [{"result": {"tools": [each]}} for each in LISTED]
    for number in range(cases):
        method, seed = ("tools/call", seeds) if number % 2 else ("tools/list", lists)
        dice = Dice.of(number)
        raw = {"jsonrpc": "2.0", "id": 1, **dice.pick.choice(seed)}
        line = dice.encoded(raw if dice.chance(0.2) else dice.bent(raw)).replace(b"\n", b" ")
        tally.count(method, cheap(HELD_SECONDS, partial(_read, method, line), number))
    for text in tally.lines():
        fuzz_report(f"lines of MCP servers to {text}")
    assert {"result", "noise"} <= tally.codes("tools/call")
    assert "list" in tally.codes("tools/list")


@pytest.mark.fuzz
@pytest.mark.parametrize("cases", [60, pytest.param(20_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
async def test_any_answer_of_a_server_is_a_result_or_an_error_of_its_call(
    tmp_path: Path, held: Held, cases: int, fuzz_report: Report
) -> None:
    """Over a process: a call ends whatever is answered, and the next one works; a lost connection is opened again."""
    tally, number, runs, lines = Tally(), 0, 0, [line for line, _ in LINES.values()]
    entry = entry_of(tmp_path, [tool("t")], t={})
    while number < cases:
        async with connected("rough", entry, os.environ) as connection:
            listing, lost = await connection.listing(), False
            while number < cases and not lost:
                dice = Dice.of(number)
                answered: Any = {"jsonrpc": "2.0", "id": "ID", "result": dice.pick.choice([*RESULTS.values()])[0]}
                line = dice.encoded(dice.bent(answered)) if dice.chance(0.8) else dice.pick.choice(lines).encode()
                data = line.replace(b"\r", b" ").replace(b"\n", b" ")
                _plan(tmp_path, data)
                await asyncio.sleep(0)
                held.seconds = 0.0
                try:
                    async with asyncio.timeout(CALL_SECONDS):
                        found = await connection.call("t", {}, meta={}, ask=nobody, progress=unheard)
                    came = "result"
                    json.dumps(result_of(entry, listing.tools["t"], found), allow_nan=False)
                except TurnstileError as error:
                    came, lost = error.code, error.code == "mcp_disconnected"
                runs += 1
                if held.seconds >= HELD_SECONDS and runs < RUNS:
                    continue  # the same once more: the machine's other users add to a run
                assert held.seconds < HELD_SECONDS, (number, held.seconds)
                tally.count("answers", came)
                number, runs = number + 1, 0
    for text in tally.lines():
        fuzz_report(f"{text} of a process that speaks MCP")
    assert "result" in tally.codes("answers")


def _plan(directory: Path, line: bytes) -> None:
    calls = {"t": {"hex": line.hex()}}
    (directory / "plan.json").write_text(json.dumps({"tools": [tool("t")], "calls": calls}))


def _read(method: str, line: bytes) -> str:
    lenient, found = Lenient(), list[str]()
    lenient.sent(SessionMessage(types.JSONRPCRequest(jsonrpc="2.0", id=1, method=method)))
    for message in lenient.lines(line):
        match lenient.heard(SessionMessage(message)).message:
            case types.JSONRPCResponse(id=1, result=result) if not found:
                found.append(_judged(method, result))
            case types.JSONRPCError(error=error):
                found.append(f"error {error.code}")
            case other:
                found.append(type(other).__name__)
    return found[0] if found else "noise"


def _judged(method: str, result: dict[str, Any]) -> str:
    validate_server_result(method, "2025-11-25", result)
    if method == "tools/list":
        return "list"
    try:
        value = result_of(_ENTRY, _TOOL, types.CallToolResult.model_validate(result, by_name=False))
    except TurnstileError as error:
        return error.code
    report = report_of(value, frozenset())
    assert read_json(json.dumps({"result": report.result}, allow_nan=False).encode()) == {"result": report.result}
    return "result" if report.error is None else report.error.code


_VALUES = _LEAVES | st.binary(max_size=4)
_WHOLE = st.lists(_VALUES, max_size=3) | st.tuples(_VALUES) | st.dictionaries(_ANY_TEXT | st.integers(), _VALUES)
PYTHON = _VALUES | _WHOLE | st.lists(_WHOLE, max_size=2) | st.dictionaries(_ANY_TEXT, _WHOLE, max_size=2)


@given(PYTHON)
def test_whatever_a_function_returns_is_reported_as_done(value: object) -> None:
    report = report_of(value, frozenset())
    assert report.status == "success"
    sent = json.dumps({"result": report.result}, allow_nan=False).encode()
    assert read_json(sent) == {"result": report.result}
