"""Log formats: one JSON object per line with its ids, for programs, or plain text (docs/observability.md).

An exception is logged by its type and frames, never by its message, which may quote a card.
"""

import json
import logging
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import TypeAlias

from turnstile.runtime.log_context import bound

_ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON line: time, level, logger, message, and the ids of the log context."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in bound().items() if name not in line}
        if record.exc_info and (error := record.exc_info[1]) is not None:
            line["error"] = type(error).__name__
            line["frames"] = _frames(error)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as its message, followed by the exception if there is one."""

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 -- the standard library's name
        """The exception's type and frames."""
        error = ei[1]
        return "" if error is None else "\n".join((type(error).__name__, *(f"  {each}" for each in _frames(error))))


def _frames(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def json_lines() -> logging.Handler:
    """A handler that writes JSON lines to standard error."""
    handler: logging.Handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    return handler
