"""`python -m lab.benchmarks [NAME]`: audit, retention, fairness, sync and start, or one of them with its options."""

import asyncio
import sys

from lab.benchmarks import audit, fairness, retention, start, sync

_ALL = {"audit": audit, "retention": retention, "fairness": fairness, "sync": sync, "start": start}


def main() -> None:
    """Run the one that is named with the options after its name, or each with its defaults."""
    named = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if named and named not in _ALL:
        sys.exit(f"there is no {named!r}: {', '.join(_ALL)}")
    for measurement in [_ALL[named]] if named else _ALL.values():
        asyncio.run(measurement.main())


if __name__ == "__main__":
    main()
