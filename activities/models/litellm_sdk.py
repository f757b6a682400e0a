"""The module that uses litellm: loads it, configures it, and converts its stream to this project's types.

Loading takes seconds and about 160 MB, so it happens once, in a thread, at the first request to a real model. It opens
no connection: prices are those of the package. litellm is configured to retry nothing, cache nothing, run no callbacks
and log nothing (its loggers print prompts). It is pinned to one version, since this module uses internals of it; tests
against local servers (tests/models) fail if an upgrade changes them.
"""

import contextlib
import importlib
import inspect
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from turnstile.activities.models.provider_bytes import Overheard, overhear
from turnstile.activities.models.reasoning import ReasoningPiece
from turnstile.activities.models.wire_forms import NOTHING_KEPT, SIGNATURE, StreamPiece, ToolCallFragment
from turnstile.activities.models.wire_reader import OWN_JSON, Outcome, WireReader, reads_bytes_of, too_large
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ModelError

TESTED_VERSION = "1.106.2"
"""The version that pyproject.toml pins."""
_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no download of prices
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_MODE": "PRODUCTION",  # else a .env file above the working directory changes our environment
}
_IMPORTING = threading.Lock()
_SILENCED = ("LiteLLM", "LiteLLM Proxy", "LiteLLM Proxy.stdout", "LiteLLM Router")
_QUIETED = ("httpx", "httpcore", "openai", "aiohttp", "urllib3", "botocore", "boto3")
_ID_LENGTH = 256
_MADE_UP = re.compile(r"chatcmpl-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""An id as litellm makes one up for an answer that has none."""
_REASONS = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete"), "stop"),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), "tool_calls"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(
        ("malformed_function_call", "malformed_response", "unexpected_tool_call", "missing_thought_signature"),
        "malformed_function_call",
    ),
    "refusal": "content_filter",
}
"""Finish reasons of providers, in lower case, and ours; litellm says `stop` for most others."""
_ODD = re.compile(r"[^A-Za-z0-9_.:/-]")
_REASON_LENGTH = 64
_QUOTED = 4_096
"""Characters of what an error of litellm quotes."""
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_DETAILS = (
    ("prompt_tokens_details", "cached_tokens"),
    ("prompt_tokens_details", "cache_creation_tokens"),
    ("completion_tokens_details", "reasoning_tokens"),
)


@dataclass(frozen=True, slots=True)
class End:
    """The end of a stream. `finish_reason` is None if the provider gave none: the stream broke off."""

    finish_reason: str | None
    usage: JsonObject
    usage_reported: bool
    """True if the provider sent the counts, False if litellm counted."""
    cost: float | None
    response_id: str | None = None
    """The provider's id of the answer; None if it has none. litellm names no model but the one of the request."""
    refusal: str = ""
    """What the model said instead of an answer, where its provider marks that as a refusal."""
    lost_calls: int = 0
    """Calls that came without a function."""


class LitellmSdk:
    """litellm, loaded and configured."""

    def __init__(self, module: Any, close_session: Callable[[], Awaitable[None]]) -> None:
        self._litellm = module
        self._close_session = close_session

    def provider(self, model: str) -> str | None:
        """litellm's name for the provider of a model id; None if it knows none."""
        try:
            provider: object = self._litellm.get_llm_provider(model)[1]
        except Exception:  # noqa: BLE001 -- it raises several kinds for the same thing
            return None
        return provider if isinstance(provider, str) else None

    def takes_schema(self, model: str, provider: str) -> bool:
        """Whether the provider takes the schema of an answer as it is, by litellm's table of models."""
        supported: object = self._litellm.supports_response_schema(model=model, custom_llm_provider=provider)
        return provider in OWN_JSON and supported is True

    def takes_files(self, model: str, provider: str) -> frozenset[str]:
        """The kinds of files that the model takes, by litellm's table of models."""
        image: object = self._litellm.supports_vision(model=model, custom_llm_provider=provider)
        pdf: object = self._litellm.utils.supports_pdf_input(model, provider)
        return frozenset(kind for kind, takes in (("image", image), ("pdf", pdf)) if takes is True)

    def missing_variables(self, model: str) -> list[str]:
        """The environment variables that a model needs and that are unset."""
        validated: dict[str, Any] = self._litellm.validate_environment(model=model)
        return [str(name) for name in validated["missing_keys"]]

    def count(self, form: JsonObject) -> int:
        """The tokens of the messages and tools of a request; takes CPU. Raises what litellm raises."""
        name: str = self._litellm.get_llm_provider(form["model"])[0]
        counted: object = self._litellm.token_counter(model=name, messages=form["messages"], tools=form.get("tools"))
        if not isinstance(counted, int):
            raise TypeError("litellm gave no number of tokens")
        return counted

    async def stream(
        self,
        form: JsonObject,
        *,
        reads_bytes: bool = True,
        gather_seconds: float = 0.0,
        before_send: Callable[[], None] | None = None,
        **options: object,
    ) -> AsyncGenerator[StreamPiece | End, None]:
        """Yields the events of one request, `End` last; raises what litellm raises.

        With `reads_bytes` a stream of one of the three forms is read as bytes (`wire_reader`), at most once in
        `gather_seconds`; else by litellm.
        """
        async with contextlib.aclosing(overhear(before_send)) as heard:
            wrapper: Any = await self._litellm.acompletion(
                **form,
                **options,
                stream=True,
                stream_options={"include_usage": True},
                num_retries=0,
                max_retries=0,
                caching=False,
                # Without this a request with tools imports litellm's MCP gateway, which needs packages of its proxy.
                _skip_mcp_handler=True,
            )
            try:
                await _fetch(wrapper)
                reader = None
                stream, provider = heard.stream, self.provider(str(form["model"]))
                if reads_bytes and stream is not None and reads_bytes_of(provider, form) and stream.take():
                    reader = WireReader(stream, heard, gather_seconds)
                    async with contextlib.aclosing(reader.pieces()) as pieces:
                        async for piece in pieces:
                            yield piece
                    if reader.outcome is Outcome.CUT:
                        yield End(None, {}, usage_reported=False, cost=None)
                        return
                read = reader is not None and reader.outcome is not Outcome.FOREIGN
                finish: str | None = None
                usage: Any = None
                response_id: str | None = None
                # litellm has summed up usage here; reading on would only feed its logging.
                while usage is None and (chunk := await anext(wrapper, None)) is not None:
                    choice: Any = chunk.choices[0] if chunk.choices else None
                    usage = getattr(chunk, "usage", None)
                    response_id = _own_id(chunk) or response_id
                    if choice is not None:
                        finish = choice.finish_reason or finish
                        if not read:
                            yield _piece(choice.delta)
                if heard.too_large:
                    raise too_large()
                if reader is not None and reader.outcome is Outcome.ERROR:
                    message = "the stream has an event that is no part of an answer"
                    raise ModelError("model_stream_broken", message, retryable=True)
                if reader is not None and read:
                    response_id = reader.response_id and reader.response_id[:_ID_LENGTH]
                elif heard.details:
                    yield StreamPiece("", "", (), ReasoningPiece(reasoning_details=heard.details))
                yield replace(_end(wrapper, heard, finish, usage), response_id=response_id)
            finally:
                await wrapper.aclose()

    async def close(self) -> None:
        """Close every cached client; the next request creates new ones."""
        cache: Any = self._litellm.in_memory_llm_clients_cache
        clients: list[Any] = list(cache.cache_dict.values())
        # litellm creates this client at its first use, and again after it was closed.
        attributes: dict[str, Any] = self._litellm.__dict__
        clients.append(attributes.pop("module_level_aclient", None))
        await self._litellm.close_litellm_async_clients()
        for client in clients:
            if hasattr(client, "close"):
                with contextlib.suppress(RuntimeError):  # of another event loop
                    closing = client.close()
                    if inspect.isawaitable(closing):
                        await closing
        cache.flush_cache()
        await self._close_session()


def _imported(package: str) -> Any:
    """The package, imported once; a try that fails leaves no half of it behind, which would fail every later one."""
    try:
        with _IMPORTING:
            return importlib.import_module(package)
    except BaseException:
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
        raise


def load_litellm() -> LitellmSdk:
    """Import and configure litellm; raises `ModelError` (`model_library_missing`) if it is not installed."""
    os.environ.update(_ENVIRONMENT)
    # litellm builds pydantic models at import, and pydantic warns about their types.
    warnings.filterwarnings("ignore", r"Item .* on TypedDict class .* is using the `ReadOnly` qualifier", UserWarning)
    # and serializes odd fields of providers with a warning that quotes them
    warnings.filterwarnings("ignore", r"Pydantic serializer warnings", UserWarning)
    try:
        module: Any = _imported("litellm")
    except ModuleNotFoundError:
        message = "litellm is not installed: install Turnstile's dependencies, see `turnstile docs models`"
        raise ModelError("model_library_missing", message, retryable=False) from None
    module.suppress_debug_info = True
    module.turn_off_message_logging = True
    module.set_verbose = False
    module.drop_params = False
    module.cache = None
    module.disable_hf_tokenizer_download = True  # counting tokens shall contact nobody
    # Without this, litellm stops an answer with 100 equal pieces (a row of dashes) and raises an HTTP 500 of its own.
    module.REPEATED_STREAMING_CHUNK_LIMIT = sys.maxsize
    redaction = vars(importlib.import_module("litellm.litellm_core_utils.secret_redaction"))
    redaction["_SECRET_RE"] = _BriefPattern(redaction["_SECRET_RE"])
    handler: Any = importlib.import_module("litellm.llms.custom_httpx.http_handler")
    http: Any = importlib.import_module("turnstile.activities.models.provider_http")  # which imports litellm
    handler.AsyncHTTPHandler.create_async_transport = staticmethod(http.transport)
    for name in _SILENCED:
        logging.getLogger(name).disabled = True
        logging.getLogger(name).handlers.clear()
    for name in _QUIETED:
        logging.getLogger(name).setLevel(logging.WARNING)
    return LitellmSdk(module, http.close_session)


@dataclass(frozen=True, slots=True)
class _BriefPattern:
    """litellm's pattern of secrets, on the begin of a text alone: it takes 2 ms of the loop for each kB."""

    pattern: re.Pattern[str]

    def sub(self, replacement: str, text: str) -> str:
        return self.pattern.sub(replacement, text[:_QUOTED])


async def _fetch(wrapper: Any) -> None:
    """Send the request now, where litellm does so at the first event that is read (Gemini, Vertex AI)."""
    try:
        await wrapper.fetch_stream()
    except Exception as error:  # noqa: BLE001 -- litellm makes its own error of any, when it reads
        fault = error

        async def fail(**_: object) -> None:
            raise fault

        wrapper.make_call = fail


def _piece(delta: Any) -> StreamPiece:
    calls = tuple(map(_fragment, delta.tool_calls or ()))
    return StreamPiece(delta.content or "", getattr(delta, "reasoning_content", None) or "", calls, _kept(delta))


def _fragment(call: Any) -> ToolCallFragment:
    # litellm writes Gemini's signature of a call into its id
    call_id, _, written = (call.id or "").partition(SIGNATURE)
    signature = _own_field(call, "thought_signature")
    return ToolCallFragment(
        call.index or 0,
        call_id or None,
        call.function.name,
        call.function.arguments or "",
        signature if isinstance(signature, str) else written or None,
    )


def _kept(delta: Any) -> ReasoningPiece:
    blocks, items = getattr(delta, "thinking_blocks", None), getattr(delta, "reasoning_items", None)
    signatures = _own_field(delta, "thought_signatures")
    if not (blocks or items or signatures):
        return NOTHING_KEPT
    signed = [signature for signature in signatures or () if isinstance(signature, str)]
    return ReasoningPiece(_objects(blocks), signed, reasoning_items=_objects(items))


def _own_field(of: Any, name: str) -> Any:
    fields: Any = getattr(of, "provider_specific_fields", None)
    return fields.get(name) if isinstance(fields, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] -- litellm's


def _objects(values: Any) -> list[JsonObject]:
    """litellm's objects of a list as JSON."""
    objects = cast("list[Any]", values) if isinstance(values, list) else []
    return [dict(value.model_dump() if hasattr(value, "model_dump") else value) for value in objects]


def _own_id(chunk: Any) -> str | None:
    """The id that the provider gave its answer; not one that litellm made up."""
    value: object = getattr(chunk, "id", None)
    is_provider_id = isinstance(value, str) and value and not _MADE_UP.fullmatch(value)
    return str(value)[:_ID_LENGTH] if is_provider_id else None


def _end(wrapper: Any, heard: Overheard, finish: str | None, usage: Any) -> End:
    # Without a finish reason of the provider litellm says "stop", which would hide a stream that broke off.
    received_reason = getattr(wrapper, "received_finish_reason", None) or getattr(
        wrapper, "intermittent_finish_reason", None
    )
    received_reason = heard.finish if heard.has_form else received_reason
    reported = any(_total(getattr(chunk, "usage", None)) for chunk in wrapper.chunks)
    counts = _counts(usage)
    cost = getattr(usage, "cost", None)
    return End(
        finish_reason=_reason(received_reason, finish) if received_reason else None,
        usage=counts,
        usage_reported=reported,
        cost=float(cost) if isinstance(cost, int | float) and counts else None,
        refusal="".join(heard.refusal),
        lost_calls=heard.lost_calls,
    )


def _reason(reason: str, mapped: str | None) -> str:
    """The finish reason: as litellm maps what it knows; else the provider's own word, in few characters."""
    if (known := _REASONS.get(reason.lower())) is not None:
        return "tool_calls" if (known, mapped) == ("stop", "tool_calls") else known
    if mapped not in {None, "stop", reason}:
        return str(mapped)
    return _ODD.sub("_", reason)[:_REASON_LENGTH]


def _counts(usage: Any) -> JsonObject:
    """The counts as a flat object; empty if nothing was counted."""
    if not _total(usage):
        return {}
    counts: JsonObject = {name: int(getattr(usage, name, 0) or 0) for name in _COUNTS}
    for group, name in _DETAILS:
        count = getattr(getattr(usage, group, None), name, None)
        if isinstance(count, int) and count:
            counts[name] = count
    return counts


def _total(usage: Any) -> int:
    total = getattr(usage, "total_tokens", None)
    return total if isinstance(total, int) else 0
