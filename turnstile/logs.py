"""A log for programs: one JSON object a line, with the ids that a line is about (docs/observability.md).

An exception is told by its type and frames, never by its message, which may quote a card.
"""

import json
import logging
import traceback
from datetime import UTC, datetime

from schema.logs import bound


class JsonFormatter(logging.Formatter):
    """A record as one line: time, level, logger, message, and the ids at hand."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in bound().items() if name not in line}
        if record.exc_info and (error := record.exc_info[1]) is not None:
            frames = traceback.extract_tb(error.__traceback__)
            line["error"] = type(error).__name__
            line["frames"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=False, default=str)


def json_lines() -> logging.Handler:
    """Writes one object a line to standard error."""
    handler: logging.Handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    return handler
