"""`Output` prints everything: results to standard output; remarks, logs and errors to standard error.

With `--json` standard output has JSON only: one document, or one object per line if a command streams. Control
characters are removed from the text of models and users, so that it cannot control the terminal.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Literal, TypeVar

from pydantic import BaseModel, JsonValue
from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from turnstile.cli.errors import Failure
from turnstile.schema.visible import escape, visible
from turnstile.telemetry.logs import TextFormatter, json_lines

_WIDE = 200
_INDENT = 4
_MIN_CELL = 12
"""A shortened cell keeps at least this many columns."""
_QUIET = ("nats", "temporalio", "asyncio", "urllib3", "requests", "opentelemetry")
_WARNINGS_ONLY = ("httpx", "httpcore", "openai", "anthropic", "LiteLLM", "LiteLLM Router", "LiteLLM Proxy")
"""Libraries whose log lines may quote prompts or addresses with keys: only their warnings are shown."""

Item = TypeVar("Item", bound=BaseModel)


def clean(text: str) -> str:
    """`text` without what nobody sees."""
    return visible(text, lambda _: "")


def clock(moment: datetime | None) -> str:
    """Date and time in the local zone; empty for None."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else ""


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    # For a pipe rich assumes 80 columns, which would break ids.
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


class Output:
    """Prints text for people, or JSON for programs."""

    def __init__(self, *, as_json: bool, verbose: bool = False) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self._out = _console(stderr=False)
        self.wraps = sys.stdout.isatty() or "COLUMNS" in os.environ
        """Whether the result is printed at a known width, so that text is wrapped."""
        self._err = _console(stderr=True)
        self._log: logging.Logger | None = None
        """The logger for remarks and errors, if the log is JSON lines."""

    def log_to(self, level: str, log_format: Literal["text", "json"] = "text") -> None:
        """Send the logs of all libraries from `level` upwards to standard error; with `--verbose` all levels."""
        handler: logging.Handler = RichHandler(
            console=self._err, show_path=self.verbose, markup=False, rich_tracebacks=False
        )
        handler.setFormatter(TextFormatter())
        if log_format == "json":
            self._log = logging.getLogger("turnstile")
            handler = json_lines()
        logging.basicConfig(level=logging.INFO, datefmt="[%X]", handlers=[handler], force=True)
        logging.getLogger().setLevel(logging.DEBUG if self.verbose else level.upper())
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.INFO if self.verbose else logging.WARNING)
        for name in _WARNINGS_ONLY:
            logging.getLogger(name).setLevel(logging.WARNING)

    def document(self, value: JsonValue | BaseModel | Sequence[BaseModel]) -> None:
        """Print one JSON document."""
        self._write(_json(_plain(value), indent=2) + "\n")

    def result(self, value: JsonValue | BaseModel, text: str) -> None:
        """Print the result of a command: `text` as a line, or with `--json` the document."""
        if self.as_json:
            self.document(value)
        else:
            self.line(text)

    def json_line(self, value: JsonValue | BaseModel) -> None:
        """Print one JSON object on a line."""
        self._write(_json(_plain(value)) + "\n")

    def records(
        self, title: str, items: Sequence[Item], columns: Mapping[str, Callable[[Item], object]], *, cut: str = ""
    ) -> None:
        """Print a list: a table with a function for each column, or the items as JSON."""
        if self.as_json:
            self.document(items)
        elif not items:
            self.remark(f"no {title}")
        else:
            self.table(title, list(columns), [[cell(item) for cell in columns.values()] for item in items], cut=cut)

    @property
    def width(self) -> int:
        """Columns of the terminal, or the width assumed if there is none."""
        return self._out.width

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, cut: str = "") -> None:
        """Print a table for people. Cells of the column `cut` are shortened to the width that the others leave."""
        table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
        for column in columns:
            table.add_column(column, overflow="fold")
        cells = [[_cell(value) for value in row] for row in rows]
        if cut:
            self._shorten(columns, cells, columns.index(cut))
        for row in cells:
            table.add_row(*row)
        self._out.print(table)

    def _shorten(self, columns: Sequence[str], rows: Sequence[Sequence[Text]], cut: int) -> None:
        """Shorten the cells of one column to the width that the others leave; rich would fold the others first."""
        widths = [max((row[column].cell_len for row in rows), default=0) for column in range(len(columns))]
        others = [max(width, len(name)) for name, width in zip(columns, widths, strict=True)]
        room = self.width - sum(others) + others[cut] - 3 * len(columns) - 1
        for row in rows:
            row[cut].truncate(max(room, _MIN_CELL), overflow="ellipsis")

    def facts(self, title: str, facts: Mapping[str, object]) -> None:
        """Print names and values below each other, without values that are None or empty."""
        table = Table(
            title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
        )
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts.items():
            if value is not None and value != "":
                table.add_row(name, _cell(value))
        self._out.print(table)

    @property
    def console(self) -> Console:
        """The console of standard output, for a screen that is redrawn."""
        return self._out

    def show(self, what: RenderableType) -> None:
        """Print something that rich can render as part of the result."""
        self._out.print(what)

    def line(self, text: str = "", *, style: str = "", note: str = "") -> None:
        """Print a line of the result, followed by a dim note."""
        line = Text.assemble((clean(text), style), (f"  {clean(note)}" if note else "", "dim"))
        self._out.print(line, soft_wrap=True)

    def indented(self, text: str, *, style: str = "") -> None:
        """Print indented text below the line it belongs to; it is wrapped on a terminal only."""
        if self.wraps:
            self._out.print(Padding(Text(clean(text), style=style), (0, 0, 0, _INDENT)))
            return
        for each in clean(text).split("\n"):
            self._out.print(Text(" " * _INDENT + each, style=style), soft_wrap=True)

    def stream(self, text: str, *, style: str = "") -> None:
        """Print a piece of text without a newline, and flush."""
        self._out.print(Text(clean(text), style=style), end="", soft_wrap=True)
        self._out.file.flush()

    def remark(self, text: str) -> None:
        """Print a remark on standard error, or log it if the log is JSON lines."""
        if self._log is not None:
            self._log.info("%s", clean(text))
            return
        self._err.print(Text(clean(text), style="dim"), soft_wrap=True)

    def confirm(self, question: str) -> bool:
        """Ask a question at the terminal; True if the answer is yes, False without a terminal."""
        if not (sys.stdin.isatty() and self._err.is_terminal):
            return False
        return self._err.input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}

    @contextmanager
    def progress(self, title: str) -> Generator[Callable[[str], None]]:
        """Show a progress bar on a terminal while the block runs; the yielded function sets the text beside it."""
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._err,
            transient=True,
            disable=not self._err.is_terminal,
        )
        with bar:
            task = bar.add_task(title, total=None, note="")
            yield lambda note: bar.update(task, note=clean(note))

    def failure(self, failure: Failure) -> None:
        """Print the error that ends the command."""
        if self.as_json:
            error: JsonValue = {"code": failure.code, "message": failure.message, "hint": failure.hint}
            self.json_line({"error": error})
            return
        if self._log is not None:
            self._log.error("%s (%s)", clean(failure.message), failure.code)
            return
        first, *rest = clean(failure.message).split("\n")
        text = Text.assemble(("error: ", "bold red"), first, (f" ({failure.code})", "dim"))
        self._err.print(text, soft_wrap=True)
        for line in rest:
            self._err.print(Text(f"       {line}"), soft_wrap=True)
        if failure.hint:
            self._err.print(Text(f"hint:  {failure.hint}", style="dim"), soft_wrap=True)

    def trace(self) -> None:
        """With `--verbose` print the traceback of the error that is being handled."""
        if self.verbose:
            self._err.print_exception(show_locals=False)

    def _write(self, text: str) -> None:
        self._out.file.write(text)
        self._out.file.flush()


def _json(value: object, indent: int | None = None) -> str:
    """JSON in which what nobody sees is escaped: a terminal shows it, too."""
    return visible(json.dumps(value, indent=indent, ensure_ascii=False), escape, exact=True)


def _plain(value: JsonValue | BaseModel | Sequence[BaseModel]) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value


def _cell(value: object) -> Text:
    match value:
        case None:
            return Text("")
        case datetime():
            return Text(clock(value))
        case list() | tuple():
            return Text(clean(", ".join(str(each) for each in value)))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] -- any values
        case _:
            return Text(clean(str(value)))
