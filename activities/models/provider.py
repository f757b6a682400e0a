"""The models that litellm supports, as a `turnstile.runtime.ports.Model`.

One adapter serves all providers and all turns and keeps no state of a turn. The first request (or `warm_up`) loads
litellm in a thread. Nothing is retried here: the step retries and counts its attempts (protocol §7.9).
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from turnstile.activities.models.access import NO_KEY, ModelAccess
from turnstile.activities.models.forms import request_form
from turnstile.activities.models.litellm_sdk import End, LitellmSdk, load_litellm
from turnstile.activities.models.provider_errors import STREAM_BROKEN, model_error
from turnstile.activities.models.reasoning import ReasoningDraft, TaggedReasoning
from turnstile.activities.models.wire_forms import ToolCallFragment
from turnstile.rules.model_files import file_tokens
from turnstile.runtime.ports import (
    ContentDelta,
    ModelDone,
    ModelEvent,
    ModelRequest,
    ReasoningDelta,
    TokenCount,
    ToolCallDelta,
)
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Reasoning
from turnstile.schema.errors import BadRequest, ModelError
from turnstile.schema.json_reading import read_json_text

log = logging.getLogger(__name__)

_GRACE_SECONDS = 5.0
"""litellm's timeout is longer than ours by this, so that ours is the one that is reported."""
_EITHER = ("gemini",)
"""Providers that need only one of the variables that litellm reports as missing."""
_COUNTED = ("openai", "azure")
"""Providers whose tokens litellm counts with the model's own encoding."""
_COUNTING_THREADS = 2
_SECRETS = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
_SHORTEST_KEY = 6
_BYTES_PER_TOKEN = 3
"""Less than of most texts, so that an estimate is rather too large."""
_OWN = "hosted_vllm"
"""litellm's provider for servers that speak OpenAI's chat completions and need no key."""
_LOCAL = ("ollama", "ollama_chat")
"""Providers that need no key: their variable only replaces a default address."""


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A server that speaks OpenAI's chat completions: its base URL, and what it calls the model."""

    base: str
    model: str

    @property
    def id(self) -> str:
        """The model's id for litellm."""
        return f"{_OWN}/{self.model}"


class LitellmModel:
    """A `Model` for ids `provider/model`."""

    def __init__(
        self, access: ModelAccess | None = None, *, reads_bytes: bool = True, gather_seconds: float = 0.0
    ) -> None:
        """With `reads_bytes` streams are read as bytes where their form is known, else all by litellm.

        What comes of such a stream within `gather_seconds` is read at once.
        """
        self._access = access or ModelAccess()
        self._reads_bytes = reads_bytes
        self._gather_seconds = gather_seconds
        self._sdk: LitellmSdk | None = None
        self._loading = asyncio.Lock()
        self._counting = ThreadPoolExecutor(_COUNTING_THREADS, "turnstile-count")

    async def stream(self, request: ModelRequest, server: OwnServer | None = None) -> AsyncGenerator[ModelEvent, None]:
        """Yields the answer as it arrives; raises the `ModelError` that `provider_errors` derives from an error.

        With `own` the request goes to that server, whatever provider the model's id names.
        """
        model = request.config.model
        sdk = await self.warm_up()
        if server is None:
            provider = self._provider(sdk, model)
            origin = self._access.origin(model, provider)
            form = _form(sdk, request, provider, origin)
            key, base = self._key(sdk, model, provider), self._access.api_base(model)
        else:
            provider, origin = _OWN, model.partition("/")[0]
            takes = request.config.accepts or ()
            form = {**request_form(request, provider, origin, takes=takes), "model": server.id}
            key, base = self._access.api_key(model) or NO_KEY, server.base
        pieces = sdk.stream(
            form,
            reads_bytes=self._reads_bytes,
            gather_seconds=self._gather_seconds,
            before_send=request.before_send,
            api_key=key,
            api_base=base,
            timeout=request.timeout_seconds + _GRACE_SECONDS,
        )
        streaming, calls = False, _Calls()
        reasoning = ReasoningDraft(origin, provider, tags=TaggedReasoning(request.config.reasoning_in_text))
        try:
            async for piece in pieces:
                if isinstance(piece, End):
                    for event in _deltas(*reasoning.end()):
                        yield event
                    yield _done(piece, model, base, reasoning.kept())
                    return
                streaming = True
                for event in _deltas(*reasoning.add(piece.reasoning, piece.kept, piece.text)):
                    yield event
                for call in piece.calls:
                    delta = calls.delta(call)
                    if call.signature is not None:
                        reasoning.sign(delta.index, call.signature)
                    yield delta
        except Exception as error:  # noqa: BLE001 -- litellm raises its own classes and any other
            quotes, keys = self._access.provider_messages, _keys(key)
            raise model_error(error, model, streaming=streaming, quotes=quotes, keys=keys) from None
        finally:
            await pieces.aclose()

    async def count(self, request: ModelRequest, is_local: bool = False) -> TokenCount:
        """As litellm counts: exact for models whose tokens it knows, else by another model's, or by the size.

        `own`: whether the model is one of an `OwnServer`.
        """
        model = request.config.model
        sdk = await self.warm_up()
        provider = _OWN if is_local else self._provider(sdk, model)
        origin = model.partition("/")[0] if is_local else self._access.origin(model, provider)
        takes = request.config.accepts or () if is_local else _takes(sdk, request, provider)
        # files are counted by what providers charge, of which litellm knows little
        files = file_tokens(request.messages, request.files, model, takes)
        schema = not is_local and _takes_schema(sdk, request, provider)
        form = request_form(request, provider, origin, takes_schema=schema)
        if is_local:
            form["model"] = f"{_OWN}/{model}"
        try:
            # the shared threads are those by which servers of models are found: long texts shall not keep them
            tokens = await asyncio.get_running_loop().run_in_executor(self._counting, sdk.count, form)
        except Exception as error:  # noqa: BLE001 -- litellm raises any class for a form that it cannot count
            log.warning("%s: tokens are estimated by size: %s", model, type(error).__name__)
            return TokenCount(estimated_tokens(form) + files, exact=False)
        return TokenCount(tokens + files, exact=provider in _COUNTED and not files)

    async def check(self, model: str) -> None:
        """Raises `ModelError`: `model_unknown`, or `model_key_missing` naming the variable. Contacts no provider."""
        sdk = await self.warm_up()
        self._key(sdk, model, self._provider(sdk, model))

    async def warm_up(self) -> LitellmSdk:
        """Load litellm, once: takes seconds of CPU and about 160 MB."""
        async with self._loading:
            if self._sdk is None:
                self._sdk = await asyncio.to_thread(load_litellm)
        return self._sdk

    async def close(self) -> None:
        """Close litellm's clients, if it was loaded."""
        if self._sdk is not None:
            await self._sdk.close()
        self._counting.shutdown(wait=False, cancel_futures=True)

    def _provider(self, sdk: LitellmSdk, model: str) -> str:
        provider = sdk.provider(model)
        if provider is None:
            message = f"no provider is known for the model {model!r}: write provider/model, as in openai/gpt-4o"
            raise ModelError("model_unknown", message, retryable=False)
        return provider

    def _key(self, sdk: LitellmSdk, model: str, provider: str) -> str | None:
        """The key to send; None: litellm takes it from the environment. Raises `ModelError` (`model_key_missing`)."""
        key = self._access.api_key(model)
        if key is not None or provider in _LOCAL:
            return key
        missing = sdk.missing_variables(model)
        if not missing:
            return None
        if self._access.needs_no_key(model):
            return NO_KEY
        names = (" or " if provider in _EITHER else " and ").join(sorted(missing))
        message = f"{model} needs {names} in the worker's environment, or a file in [model.api_key_files].{provider}"
        raise ModelError("model_key_missing", message, retryable=False)


def _form(sdk: LitellmSdk, request: ModelRequest, provider: str, origin: str) -> JsonObject:
    takes = _takes(sdk, request, provider)
    return request_form(request, provider, origin, takes_schema=_takes_schema(sdk, request, provider), takes=takes)


def _takes_schema(sdk: LitellmSdk, request: ModelRequest, provider: str) -> bool:
    return request.output_schema is not None and sdk.takes_schema(request.config.model, provider)


def _takes(sdk: LitellmSdk, request: ModelRequest, provider: str) -> Collection[str]:
    """The kinds of files that the model is sent: those that its profile says, else those of the table of models."""
    if not request.files:
        return ()
    accepts = request.config.accepts
    return sdk.takes_files(request.config.model, provider) if accepts is None else accepts


def estimated_tokens(form: JsonObject) -> int:
    """The tokens of a request by the size of its messages and tools."""
    text = json.dumps([form["messages"], form.get("tools")], ensure_ascii=False)
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)


def _deltas(thought: str, text: str) -> list[ModelEvent]:
    return [*([ReasoningDelta(thought)] if thought else []), *([ContentDelta(text)] if text else [])]


def _done(end: End, model: str, base: str | None, reasoning: Reasoning | None) -> ModelDone:
    if end.finish_reason is None:
        raise ModelError(STREAM_BROKEN, f"{model}: the stream ended without a finish reason", retryable=True)
    kind = "unknown" if not end.usage else "exact" if end.usage_reported else "estimated"
    return ModelDone(
        end.finish_reason,
        end.usage,
        end.cost,
        kind,
        end.response_id,
        base,
        reasoning,
        refusal=end.refusal,
        lost_calls=end.lost_calls,
    )


@dataclass(slots=True)
class _Started:
    """A tool call of which at least one piece has come."""

    index: int
    id: str
    arguments: list[str] = field(default_factory=list[str])


def _keys(sent: str | None) -> list[str]:
    """What must never be quoted: the key that was sent, and each variable of this process that is named as one is."""
    named = [value for name, value in os.environ.items() if _SECRETS.search(name) and len(value) >= _SHORTEST_KEY]
    return named if sent is None or len(sent) < _SHORTEST_KEY else [sent, *named]


@dataclass(slots=True)
class _Calls:
    """Separates calls that a provider gave the same index: a new id, or a name after complete arguments, begins one."""

    count: int = 0
    by_index: dict[int, _Started] = field(default_factory=dict[int, _Started])

    def delta(self, piece: ToolCallFragment) -> ToolCallDelta:
        """The piece as a delta whose index belongs to its call alone."""
        call = self.by_index.get(piece.index)
        if call is None or _begins_another(call, piece):
            call = self.by_index[piece.index] = _Started(self.count, piece.id or "")
            self.count += 1
        call.arguments.append(piece.arguments)
        return ToolCallDelta(call.index, piece.id or None, piece.name or None, piece.arguments)


def _begins_another(call: _Started, piece: ToolCallFragment) -> bool:
    if not piece.name:
        return False
    if piece.id and call.id and piece.id != call.id:
        return True
    return not (piece.id and call.id) and _is_complete("".join(call.arguments))


def _is_complete(arguments: str) -> bool:
    try:
        return isinstance(read_json_text(arguments), dict)
    except BadRequest:
        return False
