"""All measurements, one after the other: `python -m benchmarks`."""

import asyncio

from benchmarks import audit, retention, stops, suspended, turns


def main() -> None:
    """Run each with its defaults."""
    for measurement in (turns, stops, suspended, audit, retention):
        asyncio.run(measurement.main())


if __name__ == "__main__":
    main()
