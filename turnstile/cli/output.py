"""`Output` prints everything: results to standard output; remarks, logs and errors to standard error.

With `--json` standard output has JSON only: one document, or one object per line if a command streams. Control
characters are removed from the text of models and users, so that it cannot control the terminal.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeVar

from pydantic import BaseModel, JsonValue
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from turnstile.cli.errors import Failure
from turnstile.schema.amounts import amount
from turnstile.schema.visible import escape, visible
from turnstile.telemetry.logs import JsonFormatter, TextFormatter, json_lines

_WIDE = 200
_INDENT = 4
_WORDS = re.compile(r"\s*\S+\s*")
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

    def log_process_id(self) -> None:
        """From now on each line of the log has the id of this process, which shares the log with others."""
        for handler in logging.getLogger().handlers:
            as_json = isinstance(handler.formatter, JsonFormatter)
            handler.setFormatter(JsonFormatter(process=True) if as_json else TextFormatter("%(process)d %(message)s"))

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
        """Print a table for people.

        Where the terminal is too narrow, cells are wrapped at words, those of the column `cut` are shortened, and if
        that is not enough each row is printed as lines of names and values. No word is broken.
        """
        cells = [[_cell(value) for value in row] for row in rows]
        widths = self._fitted(columns, cells, columns.index(cut) if cut else -1)
        if widths is None:
            self._blocks(title, columns, cells)
            return
        table = Table(title_justify="left", header_style="dim")
        for column, width in zip(columns, widths, strict=True):
            table.add_column(column, width=width, overflow="ellipsis")
        for row in cells:
            table.add_row(*row)
        self._print(self._out, Text(title, style="bold"))
        self._out.print(table)

    def _fitted(self, columns: Sequence[str], rows: Sequence[Sequence[Text]], cut: int) -> list[int] | None:
        """The width of each column, so that no word is broken; None if the terminal is too narrow for that.

        Shortens the cells of the column `cut` to the width that the others leave.
        """
        cells = [[Text(name), *(row[place] for row in rows)] for place, name in enumerate(columns)]
        widths = [max(1, *map(_longest_line, column)) for column in cells]
        words = [max(1, *map(_longest_word, column)) for column in cells]
        room = self.width - 3 * len(columns) - 1
        if cut >= 0 and sum(widths) > room:
            least = min(widths[cut], max(_MIN_CELL, cell_len(columns[cut])))
            widths[cut] = words[cut] = max(least, widths[cut] + room - sum(widths))
            for row in rows:
                row[cut].truncate(widths[cut], overflow="ellipsis")
        while (over := sum(widths) - room) > 0:
            spares = [width - word for width, word in zip(widths, words, strict=True)]
            place = spares.index(max(spares))
            if spares[place] == 0:
                return None
            widths[place] -= min(over, max(1, spares[place] // 2))
        return widths

    def _blocks(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        self._print(self._out, Text(title, style="bold"))
        for place, row in enumerate(rows):
            if place:
                self._out.print()
            self._pairs([(name, cell) for name, cell in zip(columns, row, strict=True) if cell.plain])

    def facts(self, title: str, facts: Mapping[str, object]) -> None:
        """Print names and values below each other, without values that are None or empty."""
        self._print(self._out, Text(title, style="bold"))
        self._pairs([(name, _cell(value)) for name, value in facts.items() if value is not None and value != ""])

    def _pairs(self, pairs: Sequence[tuple[str, Text]]) -> None:
        """Print names and values, wrapped at words beside their names."""
        left = max((cell_len(name) for name, _ in pairs), default=0) + 2
        for name, value in pairs:
            for place, line in enumerate(self._wrapped(value, self.width - left)):
                head = Text("" if place else name, style="dim")
                head.pad_right(left - head.cell_len)
                self._out.print(Text.assemble(head, line), soft_wrap=True)

    def _wrapped(self, text: Text, width: int) -> list[Text]:
        """The lines of a text, wrapped at words if the terminal's width is known."""
        return _wrap(text, width if self.wraps else 0)

    @staticmethod
    def _print(console: Console, text: Text) -> None:
        """Print a text, wrapped at words where the width is known."""
        known = console.is_terminal or "COLUMNS" in os.environ
        for line in _wrap(text, console.width if known else 0):
            console.print(line, soft_wrap=True)

    @property
    def console(self) -> Console:
        """The console of standard output, for a screen that is redrawn."""
        return self._out

    def show(self, what: RenderableType) -> None:
        """Print something that rich can render as part of the result."""
        self._out.print(what)

    def line(self, text: str = "", *, style: str = "", note: str = "") -> None:
        """Print a line of the result, followed by a dim note; a text of several lines is printed as it is."""
        line = Text.assemble((clean(text), style), (f"  {clean(note)}" if note else "", "dim"))
        if "\n" in text.strip("\n"):
            self._out.print(line, soft_wrap=True)
        else:
            self._print(self._out, line)

    def indented(self, text: str, *, style: str = "") -> None:
        """Print indented text below the line it belongs to; it is wrapped on a terminal only."""
        if self.wraps:
            for line in self._wrapped(Text(clean(text), style=style), self.width - _INDENT):
                self._out.print(Text.assemble(" " * _INDENT, line), soft_wrap=True)
            return
        for part in clean(text).split("\n"):
            self._out.print(Text(" " * _INDENT + part, style=style), soft_wrap=True)

    def stream(self, text: str, *, style: str = "") -> None:
        """Print a piece of text without a newline, and flush."""
        self._out.print(Text(clean(text), style=style), end="", soft_wrap=True)
        self._out.file.flush()

    def remark(self, text: str) -> None:
        """Print a remark on standard error, or log it if the log is JSON lines."""
        if self._log is not None:
            self._log.info("%s", clean(text))
            return
        self._print(self._err, Text(clean(text), style="dim"))

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
        self._print(self._err, text)
        for line in rest:
            self._print(self._err, Text(f"       {line}"))
        if failure.hint:
            self._print(self._err, Text(f"hint:  {failure.hint}", style="dim"))

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
        return [_plain(item) for item in value]
    return value


def _wrap(text: Text, width: int) -> list[Text]:
    """The lines of a text, wrapped at words if the width is over 0; a longer word is whole, on a line of its own."""
    lines = list(text.split("\n", allow_blank=True)) or [Text()]
    if width <= 0:
        return lines
    wrapped: list[Text] = []
    for line in lines:
        breaks, used = list[int](), 0
        for word in _WORDS.finditer(line.plain):
            if used and used + cell_len(word[0].rstrip()) > width:
                breaks.append(word.start())
                used = 0
            used += cell_len(word[0])
        wrapped += line.divide(breaks)
    for line in wrapped:
        line.rstrip()
    return wrapped


def _longest_line(text: Text) -> int:
    return max(map(cell_len, text.plain.split("\n")), default=0)


def _longest_word(text: Text) -> int:
    return max(map(cell_len, text.plain.split()), default=0)


def _cell(value: object) -> Text:
    match value:
        case None:
            return Text("")
        case datetime():
            return Text(clock(value))
        case bool():
            return Text("yes" if value else "no")
        case int() | float() | Decimal():
            return Text(amount(value))
        case list() | tuple():
            return Text(clean(", ".join(str(item) for item in value)))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] -- any values
        case _:
            return Text(clean(str(value)))
