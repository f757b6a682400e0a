"""The picture of docs/observability.md: the spans of a tree as a collector received them, as bars over time.

The demo project's Rafael asks three readers at once, each of which searches the web; worker, bridge and tools send a
collector on loopback. Nothing is drawn that it did not receive.
"""

import asyncio
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from lab.pictures.plays import QUOTES
from lab.pictures.seed import Shop
from lab.support.collector import Collector, Seen

COLORS = {
    "invoke_agent": "#3b6ea8",
    "chat": "#c9822b",
    "execute_tool": "#4f8f4a",
    "tool": "#9cc297",
    "other": "#b9bec6",
}
"""By what a span is; the conventions' own are the strong ones."""
_NANOSECONDS = 1e9
_TURNS = 4
_PATIENCE = 30.0


async def ask_for_quotes(shop: Shop, collector: Collector) -> list[Seen]:
    """The spans of the tree, once all of them have come."""
    turn = await shop.ask("shop", "rafael", QUOTES, conversation_id="posters")
    trace = str((await shop.until(turn))["trace_id"])

    async with asyncio.timeout(_PATIENCE):
        while not _whole(spans := collector.of_trace(trace)):  # noqa: ASYNC110 -- the spans come over HTTP
            await asyncio.sleep(0.02)
    return spans


def _whole(spans: list[Seen]) -> bool:
    """Whether each turn has finished and each span's parent has come."""
    known = {span.span_id for span in spans}
    orphans = [span for span in spans if span.parent and span.parent not in known]
    return sum(span.name == "finish" for span in spans) == _TURNS and not orphans


def draw(spans: list[Seen], file: Path) -> None:
    """Write the picture."""
    pyplot: Any = import_module("matplotlib.pyplot")  # slow, and only this needs it
    patches: Any = import_module("matplotlib.patches")
    rows = [(depth, span) for depth, span in _ordered(spans) if _shown(span)]
    began = min(span.started for span in spans)
    lasted = (max(span.ended for span in spans) - began) / _NANOSECONDS
    figure, axes = pyplot.subplots(figsize=(11, 0.22 * len(rows) + 0.9))
    for row, (depth, span) in enumerate(rows):
        start, width = (span.started - began) / _NANOSECONDS, (span.ended - span.started) / _NANOSECONDS
        axes.barh(row, max(width, lasted / 400), left=start, height=0.72, color=COLORS[_kind(span)])
        axes.text(-0.46 * lasted + depth * 0.018 * lasted, row, span.name, va="center", fontsize=8)
    axes.set_xlim(-0.47 * lasted, lasted * 1.01)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= lasted])
    axes.set_xlabel("seconds", fontsize=8)
    axes.tick_params(labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    named = {
        "invoke_agent": "agents",
        "chat": "models",
        "execute_tool": "calls",
        "tool": "the tools' own",
        "other": "the kernel's",
    }
    handles = [patches.Patch(color=COLORS[kind], label=label) for kind, label in named.items()]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.46, 1.0), ncols=5, fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _ordered(spans: list[Seen], above: str = "", depth: int = 0) -> Iterator[tuple[int, Seen]]:
    """The spans as a tree, each with its depth."""
    for span in spans:
        if span.parent == above:
            yield depth, span
            yield from _ordered(spans, span.span_id, depth + 1)


def _kind(span: Seen) -> str:
    operation = span.name.partition(" ")[0]
    if operation in COLORS:
        return operation
    return "tool" if span.name == "run tool" else "other"


def _shown(span: Seen) -> bool:
    """Whether there is something to see: verbs within a call, and short spans of the kernel, are left out."""
    return span.name not in {"describe", "report", "describe call", "report call", "finish", "tool"}
