"""What an exploration found, as tables and as programs to replay."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from lab.explore.graph import Violation
from lab.explore.mutations import Mutation
from lab.explore.pairs import PairsReport
from lab.explore.search import Report


def worlds_table(reports: Sequence[Report], pairs: Sequence[PairsReport]) -> Table:
    """A line for each world."""
    table = Table(title="Worlds")
    for name in ("world", "states", "transitions", "made", "depth", "seconds", "net", "alone", "healthy", "violations"):
        table.add_column(name, justify="left" if name == "world" else "right")
    for report in reports:
        graph = report.graph
        table.add_row(
            report.world,
            f"{graph.expanded:,}{'' if report.whole else ' of more'}",
            f"{graph.transitions:,}",
            f"{report.moves_made:,}",
            str(graph.depth),
            f"{report.seconds:.0f}",
            f"{report.net_seconds:.0f}",
            f"{report.alone[0]} rounds",
            f"{report.healthy[0]} rounds",
            str(len(report.violations)),
        )
    for pair in pairs:
        table.caption = f"{table.caption or ''}{pair.world}: {pair.summary()}\n"
    return table


def mutations_table(results: Sequence[tuple[Mutation, float, Violation | None]]) -> Table:
    """A line for each mutation, with the shortest path that shows it."""
    table = Table(title="Mutations", show_lines=True)
    for name in ("mutation", "found as", "moves", "shortest path", "seconds"):
        table.add_column(name)
    for mutation, seconds, violation in results:
        what, path = ("not found", ()) if violation is None else (violation.what, violation.path)
        table.add_row(mutation.name, Text(what[:160]), str(len(path)), Text("; ".join(path)), f"{seconds:.0f}")
    return table


def shown(violation: Violation) -> Text:
    """A violation and its program."""
    return Text(f"\n{violation.what}\n  " + "\n  ".join(violation.path))
