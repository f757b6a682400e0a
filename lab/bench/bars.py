"""Progress bars on standard error, one at a time; nothing is drawn if it is not a terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Advance = Callable[[int], None]


class Bars:
    """The progress bars of a run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def bar(self, text: str, total: int) -> Generator[Advance]:
        """Show a bar while the block runs; the yielded function advances it."""
        task = self._progress.add_task(text, total=total)
        try:
            yield lambda count: self._progress.advance(task, count)
        finally:
            self._progress.remove_task(task)

    def print_line(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(text, style="dim", markup=False, highlight=False)


@contextmanager
def open_bars() -> Generator[Bars]:
    """Progress bars, drawn until the block ends."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Bars(progress)
