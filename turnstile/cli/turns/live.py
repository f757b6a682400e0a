"""Prints a turn live, for people: streamed text, and events as dim lines between.

Chunks are lossy and come from every attempt of a step. A higher attempt replaces what the lower ones printed, which a
separator says; late chunks of a lower attempt or an earlier step are left out; missing ones are marked.
"""

import asyncio
from typing import assert_never

from pydantic import ValidationError

from turnstile.cli.output import Output
from turnstile.cli.people.quoting import escaped
from turnstile.schema.amounts import amount
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, StepId
from turnstile.schema.states import ChunkType, StepPhase
from turnstile.schema.wire.events import Chunk
from turnstile.schema.wire.progress import CallProgress
from turnstile.sdk.chunk_order import ChunkOrder, step_number
from turnstile.sdk.client import WatchEvent


class LiveView:
    """Prints the events of an agent, or of one of its turns. With `--json` every event is one line."""

    def __init__(
        self, out: Output, turn: AgentTurnId | None = None, *, events: bool = True, silent: bool = False
    ) -> None:
        self._out = out
        self._turn = turn
        self._events = events
        self._silent = silent
        self._order = ChunkOrder()
        self._kind: ChunkType | None = None
        self.streamed = False
        """Whether any text of the answer was printed."""
        self.last_text = ""
        """The text of the last answer, as far as it was printed."""
        self.heard = asyncio.Event()
        """Set by the first word."""

    def take(self, event: WatchEvent) -> bool:
        """Print the event, if it is of the turn that is watched; True if it is a `task` event."""
        if self._turn is not None and event.payload.get("agent_turn_id") != self._turn:
            return False
        if self._silent:
            pass
        elif self._out.as_json:
            self._out.json_line({"subject": event.subject, "event": event.suffix, "payload": event.payload})
        elif event.suffix == "chunk":
            self._chunk(event.payload)
        elif self._events:
            self._event(event)
        return event.suffix == "task"

    def take_chunk(self, chunk: Chunk) -> bool:
        """Print a chunk of a turn's client; it is never the end of the turn."""
        if chunk.chunk_type is not ChunkType.START:
            self.heard.set()
        if self._silent:
            pass
        elif self._out.as_json:
            self._out.json_line({"event": "chunk", "payload": chunk.model_dump(mode="json", exclude_none=True)})
        else:
            self._print(chunk)
        return False

    def close(self) -> None:
        """End a line that is open."""
        if self._kind is not None:
            self._out.line()
            self._kind = None

    def _event(self, event: WatchEvent) -> None:
        self.close()
        payload = event.payload
        turn = payload.get("agent_turn_id")
        whose = "" if self._turn is not None or turn is None else f" turn {turn}"
        self._out.line(f"· {event.suffix}{whose}: {_summary(event)}", style="dim")

    def _chunk(self, payload: JsonObject) -> None:
        try:
            chunk = Chunk.model_validate(payload)
        except ValidationError:  # a stranger's; nothing depends on it
            return
        self._print(chunk)

    def _print(self, chunk: Chunk) -> None:
        advance = self._order.take(chunk)
        if advance is None:
            return
        if chunk.chunk_type is ChunkType.START:
            self.last_text = ""
        if advance.restarted:
            self.close()
            self._out.line(f"— attempt {chunk.attempt}, starting over —", style="yellow")
        if advance.missed:
            self.close()
            self._out.line("· a part of the stream was lost", style="dim")
        match chunk.chunk_type:
            case ChunkType.START:
                self.close()
            case ChunkType.CONTENT:
                self._text(chunk, "")
                self.streamed = True
                self.last_text += chunk.content
            case ChunkType.REASONING:
                self._text(chunk, "dim italic")
            case ChunkType.TOOL_CALL:
                name = chunk.metadata.get("tool_name")
                if name is not None:
                    self.close()
                    self._out.stream(f"→ {name} ", style="cyan")
                self._text(chunk, "cyan")
            case ChunkType.END:
                self.close()
                if code := chunk.metadata.get("error_code"):
                    self._out.line(f"· the model failed: {code}", style="yellow")
                elif code := chunk.metadata.get("truncated"):
                    self._out.line(f"· the answer is cut off ({code})", style="yellow")
            case _:
                assert_never(chunk.chunk_type)

    def _text(self, chunk: Chunk, style: str) -> None:
        if self._kind not in (None, chunk.chunk_type):
            self._out.line()
        self._kind = chunk.chunk_type
        self._out.stream(chunk.content, style=style)


def tool_progress(event: WatchEvent, turn: AgentTurnId | None) -> str:
    """How far a tool of this turn is, as the tool says; empty for any other event."""
    metadata = event.payload.get("metadata")
    if event.payload.get("agent_turn_id") != turn or event.payload.get("phase") != StepPhase.TOOL_PROGRESS:
        return ""
    try:
        progress = CallProgress.model_validate(event.payload | (metadata if isinstance(metadata, dict) else {}))
    except ValidationError:  # a stranger's event
        return ""
    return progress_line(progress)


def progress_line(progress: CallProgress) -> str:
    """How far a tool is with a call, in one line."""
    total = "" if progress.total is None else f" of {amount(progress.total)}"
    message = f": {progress.message}" if progress.message else ""
    return escaped(f"{progress.tool_name} {amount(progress.progress)}{total}{message}")


def _summary(event: WatchEvent) -> str:
    payload = event.payload
    match event.suffix:
        case "state":
            return f"{payload.get('status')}, epoch {payload.get('turn_epoch')}{_activity(payload)}"
        case "step":
            number = step_number(StepId(str(payload.get("step_id"))))
            progress = tool_progress(event, AgentTurnId(str(payload.get("agent_turn_id"))))
            return f"{number} {payload.get('phase')}{f', {progress}' if progress else ''}"
        case "task":
            code = payload.get("error_code")
            stats = payload.get("stats")
            cut = stats.get("truncated") if isinstance(stats, dict) else None
            why = "".join(f" ({part})" for part in (code, cut and f"cut off: {cut}") if part)
            return f"{payload.get('status')}{why}, card {payload.get('deliverable_card_id')}"
        case "interrupt":
            interrupt = payload.get("interrupt_id")
            return f"{payload.get('tool_name')} waits for a person: `turnstile approvals show {interrupt}`"
        case _:
            return ", ".join(f"{name} {value}" for name, value in payload.items() if isinstance(value, (str, int)))


def _activity(payload: JsonObject) -> str:
    metadata = payload.get("metadata")
    if not isinstance(metadata, dict):
        return ""
    values = [str(metadata[name]) for name in ("activity", "current_tool") if metadata.get(name)]
    return "".join(f", {value}" for value in values)
