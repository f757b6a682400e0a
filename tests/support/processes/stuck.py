"""The stack of each task of the event loop, for the report of a test that ran into its timeout."""

import asyncio
from collections.abc import Iterator
from types import CodeType
from typing import Any


def tasks_of(loop: asyncio.AbstractEventLoop) -> str:
    """The stacks of all tasks, each with its innermost line last."""
    return "\n\n".join(
        "\n".join((task.get_name(), *(f"  {frame_line}" for frame_line in _frames(task.get_coro()))))
        for task in asyncio.all_tasks(loop)
    )


def _frames(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        for prefix in ("cr", "gi", "ag"):
            code: CodeType | None = getattr(awaited, f"{prefix}_code", None)
            frame = getattr(awaited, f"{prefix}_frame", None)
            if code is not None:
                yield f"{code.co_filename}:{frame.f_lineno if frame else '-'} {code.co_qualname}"
                awaited = getattr(awaited, f"{prefix}_await", None) or getattr(awaited, f"{prefix}_yieldfrom", None)
                break
        else:
            yield repr(awaited)
            return
