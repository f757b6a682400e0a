"""A program that reads the provider's streams without the kernel (`python -m`): the yardsticks of `providers`.

`bare` is httpx, a line at a time, and one `json.loads` a line; `openai` that client; `litellm` litellm alone;
`pydantic-ai` the loop of its agents, where it is installed; `model` the adapter of this project alone. It reads orders
as JSON lines from standard input and answers each by a line.
"""

import asyncio
import importlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import httpx

from lab.bench.providers.forms import KEY, MODELS, PATHS, URLS, Asked, Form, body_of
from turnstile.activities.models import LitellmModel, ModelAccess
from turnstile.activities.models.litellm_sdk import load_litellm
from turnstile.runtime.event_loop import fast_loop, spare_collector
from turnstile.runtime.ports import ContentDelta, ModelMessage, ModelRequest
from turnstile.schema.base import Strict
from turnstile.schema.profiles import LlmConfig

Reader = Literal["bare", "openai", "litellm", "pydantic-ai", "model"]


class Order(Strict):
    """Streams to read, all at once."""

    url: str
    reader: Reader
    form: Form
    prompt: str
    streams: int


class Done(Strict):
    """The CPU of this process for them, the pieces that had text, and how late the first piece of each was, in ms."""

    cpu_seconds: float
    pieces: int
    first_ms: list[float]


async def _bare(order: Order) -> AsyncIterator[str]:
    async with (
        _CLIENTS[order.url].stream(
            "POST", order.url + URLS[order.form], json=body_of(order.form, order.prompt)
        ) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data:") and not line.endswith("[DONE]"):
                event = json.loads(line[5:])
                text = _TEXTS[order.form](event)
                if text:
                    yield text


def _of_openai(event: dict[str, list[dict[str, dict[str, str]]]]) -> str | None:
    return event["choices"][0]["delta"].get("content") if event["choices"] else None


def _of_anthropic(event: dict[str, dict[str, str]]) -> str | None:
    return event["delta"].get("text") if event["type"] == "content_block_delta" else None  # type: ignore[comparison-overlap]


def _of_gemini(event: dict[str, list[dict[str, dict[str, list[dict[str, str]]]]]]) -> str | None:
    return event["candidates"][0]["content"]["parts"][0].get("text")


_TEXTS: dict[Form, Callable[..., str | None]] = {
    "openai": _of_openai,
    "anthropic": _of_anthropic,
    "gemini": _of_gemini,
}


class _Clients(dict[str, httpx.AsyncClient]):
    def __missing__(self, url: str) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return self.setdefault(url, httpx.AsyncClient(limits=limits, timeout=60, headers={"x-api-key": KEY}))


_CLIENTS = _Clients()


async def _openai(order: Order) -> AsyncIterator[str]:
    import openai  # noqa: PLC0415 -- heavy, and only here

    async with openai.AsyncOpenAI(api_key=KEY, base_url=order.url + PATHS["openai"]) as client:
        stream = await client.chat.completions.create(
            model="gpt-4o",
            messages=[{"role": "user", "content": order.prompt}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content


async def _litellm(order: Order) -> AsyncIterator[str]:
    import litellm  # noqa: PLC0415 -- heavy, and only here

    stream: Any = await litellm.acompletion(
        model=MODELS[order.form],
        messages=[{"role": "user", "content": order.prompt}],
        stream=True,
        stream_options={"include_usage": True},
        api_key=KEY,
        api_base=order.url + PATHS[order.form],
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


async def _pydantic_ai(order: Order) -> AsyncIterator[str]:
    agents: Any = importlib.import_module("pydantic_ai")  # no dependency of this project
    models: Any = importlib.import_module("pydantic_ai.models.openai")
    providers: Any = importlib.import_module("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=order.url + PATHS["openai"], api_key=KEY)
    agent = agents.Agent(models.OpenAIChatModel("gpt-4o", provider=provider))
    async with agent.run_stream(order.prompt) as result:
        async for text in result.stream_text(delta=True):
            yield text


async def _model(order: Order) -> AsyncIterator[str]:
    config = LlmConfig(model=MODELS[order.form])
    message = ModelMessage(role="user", content=order.prompt)
    request = ModelRequest(config, (message,), (), step=1, attempt=1, timeout_seconds=600)
    async for event in _MODELS[order.url].stream(request):
        if isinstance(event, ContentDelta):
            yield event.text


class _Models(dict[str, LitellmModel]):
    def __missing__(self, url: str) -> LitellmModel:
        bases = {form: url + path for form, path in PATHS.items()}
        return self.setdefault(url, LitellmModel(ModelAccess(api_bases=bases)))


_MODELS = _Models()
_READERS: dict[Reader, Callable[[Order], AsyncIterator[str]]] = {
    "bare": _bare,
    "openai": _openai,
    "litellm": _litellm,
    "pydantic-ai": _pydantic_ai,
    "model": _model,
}


async def _run(order: Order) -> Done:
    async def one() -> tuple[int, float]:
        pieces, late = 0, 0.0
        async for text in _READERS[order.reader](order):
            if not pieces and (stamp := text.split()[0]).isdigit():  # else the text behind thoughts
                late = (time.time_ns() - int(stamp)) / 1e6
            pieces += text.count(" ")
        return pieces, late

    began = time.process_time()
    counted = await asyncio.gather(*(one() for _ in range(order.streams)))
    cpu = time.process_time() - began
    return Done(cpu_seconds=cpu, pieces=sum(n for n, _ in counted), first_ms=[late for _, late in counted])


async def main() -> None:
    """Execute orders until the end of the input."""
    load_litellm()  # as a worker configures it, so that it is read alone but not otherwise set
    spare_collector()
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = Order.model_validate_json(line)
        await _run(order.model_copy(update={"streams": 1, "prompt": Asked(2, 50).prompt()}))  # connects, imports
        sys.stdout.write((await _run(order)).model_dump_json() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fast_loop) as runner:  # the loop of workers
        runner.run(main())
