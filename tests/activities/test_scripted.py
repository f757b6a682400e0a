"""Scripted models: what they say by step and attempt, how scripts are read, and how ids are routed."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.activities.scripted_model import Stream, request
from turnstile.activities.models import (
    ModelRouter,
    Script,
    ScriptAttempts,
    ScriptCall,
    ScriptedModel,
    ScriptError,
    ScriptLine,
    ScriptSteps,
    load_scripts,
)
from turnstile.rules.answer import AnswerDraft, ModelAnswer, collect
from turnstile.runtime.ports import (
    ContentDelta,
    ModelDone,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ReasoningDelta,
    TokenCount,
)
from turnstile.schema.errors import ConfigError, ModelError


async def ask(script: Script, asked: ModelRequest | None = None) -> ModelAnswer:
    return await collect(ScriptedModel({"x": script}).stream(asked or request()), AnswerDraft(), timeout_seconds=5)


async def events_of(script: Script) -> list[ModelEvent]:
    return [event async for event in ScriptedModel({"x": script}).stream(request())]


def steps(*lines: ScriptLine | ScriptAttempts, repeat: str = "last") -> ScriptSteps:
    return ScriptSteps.model_validate({"steps": lines, "repeat": repeat})


async def test_pieces_come_in_order_and_usage_is_counted_in_words() -> None:
    line = ScriptLine(
        text="Hello {instruction} {other}",
        reasoning="let me think",
        chunks=4,
        tool_calls=(
            ScriptCall(name="search", arguments={"q": 'about "{instruction}"'}),
            ScriptCall(name="b", arguments="{", id="mine"),
        ),
    )
    events = await events_of(steps(line))
    assert events[0] == ReasoningDelta("let me think")
    assert len([event for event in events if isinstance(event, ContentDelta)]) == 4
    assert events[-1] == ModelDone(
        "tool_calls", {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}, None, "exact"
    )
    answer = await ask(steps(line), request(said='say "hi"'))
    assert answer.text == 'Hello say "hi" {other}'
    assert [(call.provider_call_id, call.name) for call in answer.calls] == [("call_0", "search"), ("mine", "b")]
    assert json.loads(answer.calls[0].arguments_text) == {"q": 'about "say "hi""'}
    assert answer.calls[1].arguments_text == "{"


async def test_a_text_may_say_what_the_last_tool_answered() -> None:
    said = ModelMessage(role="tool", content='{"words": 6}', tool_call_id="call_0", name="word_count")
    asked = replace(request(), messages=(*request().messages, said))
    assert (await ask(steps(ScriptLine(text="It said {tool_result}.")), asked)).text == 'It said {"words": 6}.'
    assert (await ask(steps(ScriptLine(text="It said {tool_result}.")), request())).text == "It said ."


async def test_what_a_line_gives_itself() -> None:
    line = ScriptLine(text="", usage={"prompt_tokens": 3}, response_cost=0.25, finish_reason="length")
    answer = await ask(steps(line))
    assert (answer.text, answer.usage, answer.response_cost, answer.finish_reason, answer.usage_kind) == (
        "",
        {"prompt_tokens": 3},
        0.25,
        "length",
        "exact",
    )


@pytest.mark.parametrize(
    ("repeat", "texts"), [("last", ["a", "b", "b", "b"]), ("cycle", ["a", "b", "a", "b"]), ("error", ["a", "b"])]
)
async def test_steps_and_what_follows_the_last(repeat: str, texts: list[str]) -> None:
    script = steps(ScriptLine(text="a"), ScriptLine(text="b"), repeat=repeat)
    for number, text in enumerate(texts, start=1):
        assert (await ask(script, request(step=number))).text == text
    if repeat == "error":
        with pytest.raises(ModelError, match="2 steps") as raised:
            await ask(script, request(step=3))
        assert (raised.value.code, raised.value.retryable) == ("script_exhausted", False)


async def test_attempts_and_errors() -> None:
    error = ScriptError(code="rate_limited", retry_after_seconds=1.5, after_chunks=2)
    script = steps(ScriptAttempts(attempts=(ScriptLine(text="abc", chunks=3, error=error), ScriptLine(text="ok"))))
    draft = AnswerDraft()
    with pytest.raises(ModelError) as raised:
        await collect(ScriptedModel({"x": script}).stream(request()), draft, timeout_seconds=5)
    assert (raised.value.code, raised.value.retryable, raised.value.retry_after) == ("rate_limited", True, 1.5)
    assert draft.text == "ab"
    assert [(await ask(script, request(attempt=attempt))).text for attempt in (2, 3)] == ["ok", "ok"]


async def test_a_delay_can_be_cancelled() -> None:
    line = ScriptLine(text="ab", chunks=2, delay_seconds=0.02)
    assert (await ask(steps(line))).text == "ab"
    hanging = ScriptedModel({"x": steps(ScriptLine(text="", delay_seconds=3600))})
    with pytest.raises(ModelError, match="did not finish"):
        await collect(hanging.stream(request()), AnswerDraft(), timeout_seconds=0.02)


async def test_a_stream_of_a_script_is_closed_with_its_reader() -> None:
    stream = Stream([ContentDelta("x")], hangs=True)
    task = asyncio.create_task(ask(lambda _: stream()))
    await stream.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.closed


async def test_an_unknown_name_lists_what_there_is() -> None:
    model = ScriptedModel(load_scripts())
    with pytest.raises(ModelError, match="'ecko'; there are: echo, chat, demo, instant, look, slow") as raised:
        await model.check("scripted/ecko")
    assert (raised.value.code, raised.value.retryable) == ("model_unknown", False)
    with pytest.raises(ModelError, match="no scripted model"):
        await anext(model.stream(request("scripted/ecko")))
    await model.check("scripted/echo")
    await model.close()


async def test_built_in_scripts() -> None:
    scripts = load_scripts()
    assert set(scripts) == {"chat", "demo", "echo", "instant", "look", "slow"}
    assert (await ask(scripts["echo"])).text == "You said: hello there"
    assert (await ask(scripts["instant"])).text == "Done."
    calls, answers = (scripts["demo"](request(step=step)) for step in (1, 2))
    assert isinstance(calls, ScriptLine)
    assert [call.name for call in calls.tool_calls] == ["word_count"]
    assert isinstance(answers, ScriptLine)
    assert (answers.chunks, 0 < answers.delay_seconds < 0.2) == (12, True)


async def test_scripts_are_read_from_yaml_and_python(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("steps: [{text: one}]")
    (tmp_path / "two.yml").write_text("name: second\nsteps: [{attempts: [{error: {code: e}}, {text: two}]}]")
    (tmp_path / "notes.txt").write_text("not a script")
    (tmp_path / "echo.yaml").write_text("steps: [{text: mine}]")
    module = tmp_path / "three.py"
    module.write_text(
        "from turnstile.activities.models import ScriptLine\n"
        "from turnstile.runtime.ports import ContentDelta, ModelDone\n"
        "def line(request):\n"
        "    return ScriptLine(text=f'step {request.step}')\n"
        "async def stream(request):\n"
        "    yield ContentDelta('streamed')\n"
        "    yield ModelDone('stop')\n"
        "SCRIPTS = {'line': line, 'stream': stream}\n"
    )
    scripts = load_scripts([tmp_path, module])
    assert set(scripts) == {"chat", "demo", "echo", "instant", "look", "slow", "one", "second", "line", "stream"}
    assert (await ask(scripts["second"], request(attempt=2))).text == "two"
    assert (await ask(scripts["echo"])).text == "mine"
    assert (await ask(scripts["line"], request(step=7))).text == "step 7"
    assert (await ask(scripts["stream"])).text == "streamed"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.yaml", "steps: [", r"a\.yaml: not readable as YAML.*line 1"),
        ("a.yaml", "", r"a\.yaml: the file: "),
        ("a.yaml", "steps: []", r"steps: .*at least 1"),
        ("a.yaml", "stebs: []", r"the file: unknown key 'stebs'; allowed: steps, name, repeat"),
        ("a.yaml", "steps: [{txt: x}]", r"steps\[0\]: unknown key 'txt'; allowed: text, "),
        ("a.yaml", "steps: [{delay_seconds: 1}]", r"steps\[0\]: a line needs text"),
        ("a.yaml", "steps: [{text: x, chunks: 0}]", r"steps\[0\]\.chunks: must be at least 1"),
        ("a.yaml", "steps: [{attempts: [{error: {cod: x}}]}]", r"steps\[0\]\.attempts\[0\]\.error: .*allowed: code, "),
        ("a.yaml", "steps: [{text: x}]\nrepeat: never", r"repeat: .*'last', 'cycle' or 'error'"),
        ("a b.yaml", "steps: [{text: x}]", r"script name 'a b' must be"),
        ("a.py", "1 / 0", r"a\.py: failed while it was loaded: ZeroDivisionError"),
        ("a.py", "", r"a\.py: needs SCRIPTS"),
        ("a.py", "SCRIPTS = {'x': 1}", r"SCRIPTS\['x'\] must be a function"),
        ("a.txt", "", r"\.yaml, \.yml or \.py"),
    ],
)
def test_a_bad_file_is_named_with_what_is_allowed(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=said):
        load_scripts([tmp_path / name])


def test_missing_paths_and_names_given_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_scripts([tmp_path / "gone"])
    (tmp_path / "a.yaml").write_text("name: x\nsteps: [{text: x}]")
    (tmp_path / "b.yaml").write_text("name: x\nsteps: [{text: x}]")
    with pytest.raises(ConfigError, match=r"b\.yaml: script 'x' is already defined in .*a\.yaml"):
        load_scripts([tmp_path])


class Other:
    """Any other adapter."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closed = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.asked.append(request.config.model)
        yield ModelDone("stop")

    async def count(self, request: ModelRequest) -> TokenCount:
        return TokenCount(len(request.messages), exact=True)

    async def check(self, model: str) -> None:
        self.asked.append(model)

    async def close(self) -> None:
        self.closed += 1


async def test_the_router_picks_by_prefix() -> None:
    scripted, other = ScriptedModel({"x": steps(ScriptLine(text="hi"))}), Other()
    router = ModelRouter({"scripted": scripted, "other": other}, default=other)
    assert (await collect(router.stream(request()), AnswerDraft(), timeout_seconds=5)).text == "hi"
    for model in ("openai/gpt", "scripted", "other/a/b"):
        await collect(router.stream(request(model)), AnswerDraft(), timeout_seconds=5)
        await router.check(model)
    assert other.asked == ["openai/gpt", "openai/gpt", "scripted", "scripted", "other/a/b", "other/a/b"]
    await router.close()
    assert other.closed == 1


async def test_the_router_without_a_default() -> None:
    router = ModelRouter({"scripted": ScriptedModel({})}, default=None)
    with pytest.raises(ModelError, match=r"'openai/gpt'; ids served here: scripted/…") as raised:
        router.stream(request("openai/gpt"))
    assert (raised.value.code, raised.value.retryable) == ("model_unknown", False)
    with pytest.raises(ModelError, match="no scripted model"):
        await router.check("scripted/x")
