"""Log formats: one JSON object per line with its ids, for programs, or plain text (docs/observability.md).

An exception is logged by its type and frames, never by its message, which may quote a card.
"""

import json
import logging
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import TypeAlias

from turnstile.runtime.log_context import bound
from turnstile.schema.visible import escape, visible

_ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


_MOST_KINDS = 1000
_LONGEST_KIND = 200


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON line: time, level, logger, message, and the ids of the log context."""

    def __init__(self, *, process: bool = False) -> None:
        """With `process`, each line has the process id, too."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            line["process"] = record.process
        line |= {name: value for name, value in bound().items() if name not in line}
        if record.exc_info and (error := record.exc_info[1]) is not None:
            line["error"] = type(error).__name__
            line["frames"] = _frames(error)
        return visible(json.dumps(line, ensure_ascii=False, default=str), escape, exact=True)


class TextFormatter(logging.Formatter):
    """Formats a record as its message, followed by the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, in which what nobody sees is escaped."""
        return visible(super().format(record), escape)

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 -- the standard library's name
        """The exception's type and frames."""
        error = ei[1]
        return "" if error is None else "\n".join((type(error).__name__, *(f"  {frame}" for frame in _frames(error))))


class CountedLines(logging.Filter):
    """Lets one line of a kind through each `every` seconds, which says how many were left out since the last one.

    For loggers of libraries that repeat a line for each retry. It keeps a bounded number of kinds.
    """

    def __init__(self, kind: Callable[[logging.LogRecord], str], every: float = 60.0) -> None:
        super().__init__()
        self._kind = kind
        self._every = every
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is logged."""
        kind, now = self._kind(record)[:_LONGEST_KIND], time.monotonic()
        due, left_out = self._kinds.pop(kind, (0.0, 0))
        if now < due:
            self._kinds[kind] = (due, left_out + 1)
            return False
        while len(self._kinds) >= _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = (now + self._every, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out} more like it)", ()
        return True


def _frames(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def json_lines() -> logging.Handler:
    """A handler that writes JSON lines to standard error."""
    handler: logging.Handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    return handler
