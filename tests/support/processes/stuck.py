"""What a test that ran into its timeout was waiting for: where each task of the loop stood."""

import asyncio
from collections.abc import Iterator
from types import CodeType
from typing import Any


def tasks_of(loop: asyncio.AbstractEventLoop) -> str:
    """Every task, innermost line last."""
    return "\n\n".join(
        "\n".join((task.get_name(), *(f"  {place}" for place in _places(task.get_coro()))))
        for task in asyncio.all_tasks(loop)
    )


def _places(awaited: Any) -> Iterator[str]:
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
