"""Progress, one bar at a time on standard error; bars are drawn only where that is a terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Advance = Callable[[int], None]


class Bars:
    """The bars of a run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def bar(self, text: str, total: int) -> Generator[Advance]:
        """A bar that is gone when the block ends; the function moves it on."""
        task = self._progress.add_task(text, total=total)
        try:
            yield lambda count: self._progress.advance(task, count)
        finally:
            self._progress.remove_task(task)

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(text, style="dim", markup=False, highlight=False)


@contextmanager
def drawn_bars() -> Generator[Bars]:
    """Bars that are drawn until the block ends."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield Bars(progress)
