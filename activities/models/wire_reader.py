"""Reads a provider's stream as bytes: the second of the two readers, for streams of the three wire forms.

litellm makes the request and gets the response; before it reads the first byte, the stream is taken from it. All events
that have come at once are parsed and joined to a few pieces, without a pydantic model for each. In the end litellm
reads a digest (`wire_forms`), from which prices, counts and the finish reason come as from the stream itself. Of an
error in a stream litellm reads the event that has it, and raises what it always raises. A stream of another form is
given back unread. An event has at most `MOST_BYTES`.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator
from enum import StrEnum
from typing import Any, Final

import httpx

from turnstile.activities.models.provider_bytes import MOST_BYTES, MOST_ERROR_BYTES, Overheard, ProviderStream
from turnstile.activities.models.wire_forms import (
    CandidatesForm,
    Form,
    Gathered,
    OddEvent,
    StreamPiece,
    form_of,
    joined,
)
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ModelError

_DATA: Final = b"data:"
_AT_ONCE: Final = 8
"""Reads of a stream before it is read at intervals: a short answer is never held up."""
_FULL_BYTES: Final = 32_768
"""After a block of this size there is no pause, so that a fast stream does not fall behind."""
_DRAIN_SECONDS: Final = 0.2
OWN_JSON: Final = frozenset({"openai", "azure", "custom_openai", "hosted_vllm", "lm_studio", "llamafile"})
"""Providers whose `response_format` is sent as it is, and not as a tool whose calls litellm makes a text of."""
_WIRE: Final = OWN_JSON | {"openrouter", "groq", "deepseek", "mistral", "together_ai", "anthropic", "gemini"}
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def reads_bytes_of(provider: str | None, form: JsonObject) -> bool:
    """Whether what the provider streams for the request is its own words, which litellm would not rewrite."""
    if provider not in _WIRE or ("response_format" in form and provider not in OWN_JSON):
        return False
    tools = form.get("tools")
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return all(isinstance(f, dict) and _PLAIN.match(str(f.get("name"))) for f in functions)


class Outcome(StrEnum):
    """What litellm has to read of a stream that was taken from it."""

    DIGEST = "digest"
    """A digest of the whole answer."""
    CUT = "cut"
    """Nothing: there was no finish reason."""
    ERROR = "error"
    """The event that is no part of an answer."""
    FOREIGN = "foreign"
    """All: it is of no form that is known here."""


class WireReader:
    """Reads one stream, at most once in `gather_seconds` after the first few reads."""

    def __init__(self, stream: ProviderStream, heard: Overheard, gather_seconds: float) -> None:
        self.outcome = Outcome.CUT
        self._gather_seconds = gather_seconds
        self._stream = stream
        self._heard = heard
        self._form: Form | None = None
        self._gathered = Gathered()
        self._partial = list[bytes]()
        """Data of an event that does not end with its line."""
        self._ended = False
        self._blocks = 0
        self._is_full = False
        """Whether the last block was so large that more may have come with it."""
        self._odd: bytes | None = None

    @property
    def response_id(self) -> str | None:
        """The provider's id of the answer."""
        return None if self._form is None else self._form.response_id

    async def pieces(self) -> AsyncGenerator[StreamPiece, None]:
        """Yields the answer as it comes; afterwards `outcome` says what litellm has to read.

        Raises `ModelError`, and what httpx raises.
        """
        waiting: list[bytes] = []
        seen: list[bytes] = []
        size = 0
        while not self._ended and self._odd is None:
            block = await self._next_block()
            if self._form is None and block is not None:
                seen.append(block)
            end = 0 if block is None else block.rfind(b"\n") + 1
            if block is not None and not end:
                waiting.append(block)
                size += len(block)
                if size > MOST_BYTES:
                    self._heard.too_large = True
                    raise too_large()
                continue
            whole = b"".join(waiting if block is None else (*waiting, block[:end]))
            waiting, size = ([], 0) if block is None else ([block[end:]], len(block) - end)
            try:
                pieces = list(self._read(whole))
            except _Foreign:
                pieces, self.outcome = [], Outcome.FOREIGN
            if self.outcome is Outcome.FOREIGN or (block is None and self._form is None):
                self._stream.give_back(b"".join(seen))
                self.outcome = Outcome.FOREIGN
                return
            if self._form is not None:
                seen = []
            for piece in joined(pieces):
                self._gathered.add(piece)
                yield piece
            if block is None:
                break
        await self._end()

    async def _next_block(self) -> bytes | None:
        self._blocks += 1
        gathers = self._gather_seconds and self._heard.finish is None
        if self._blocks > _AT_ONCE and gathers and not self._is_full:
            await asyncio.sleep(self._gather_seconds)
        try:
            block = await self._stream.next_block()
        except (httpx.ReadError, httpx.RemoteProtocolError):
            if self._heard.finish is None or isinstance(self._form, CandidatesForm):
                raise
            return None  # the choice has ended: nothing but usage can be missing
        self._is_full = block is not None and len(block) >= _FULL_BYTES
        return block

    async def _end(self) -> None:
        if self._odd is not None:
            self._stream.put(_DATA + b" " + self._odd[:MOST_ERROR_BYTES] + b"\n\n")
            self.outcome = Outcome.ERROR
        elif self._partial:
            raise _unreadable()
        elif self._form is not None and self._heard.finish is not None:
            events = self._form.digest(self._gathered)
            self._stream.put(b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events))
            self.outcome = Outcome.DIGEST
        if self._ended:
            await self._stream.drain(_DRAIN_SECONDS)

    def _read(self, lines: bytes) -> Iterator[StreamPiece]:
        """What these lines say. Ends early at the end of the answer, or at an event that is no part of one."""
        for line in lines.split(b"\n"):
            if line.startswith(_DATA):
                data = line[len(_DATA) :]
                if len(data) < 16 and data.strip() == b"[DONE]":
                    self._ended = True
                    return
                try:
                    event: Any = json.loads(data)
                except ValueError:
                    self._partial.append(data)
                    continue
                except RecursionError:
                    raise _unreadable() from None
            elif self._partial and not line.strip():
                data = b"\n".join(self._partial)
                event, self._partial = _loaded(data), []
            else:
                continue
            if self._form is None:
                self._form = form_of(event, self._heard)
                if self._form is None:
                    raise _Foreign
            try:
                piece = self._form.read(event if isinstance(event, dict) else {})
            except OddEvent:
                self._odd = data
                return
            if piece is not None:
                yield piece
            if self._form.ended:
                self._ended = True
                return


class _Foreign(Exception):
    """The stream is of no form that is known here."""


def _loaded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise _unreadable() from None


def _unreadable() -> ModelError:
    return ModelError("model_stream_broken", "the stream is not JSON in UTF-8", retryable=True)


def too_large() -> ModelError:
    """An event of an answer has more than `MOST_BYTES`."""
    message = f"an event of the answer has more than {MOST_BYTES} bytes"
    return ModelError("model_response_invalid", message, retryable=True)
