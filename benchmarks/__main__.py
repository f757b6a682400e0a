"""All measurements, one after the other: `python -m benchmarks`."""

import asyncio

from benchmarks import audit, fairness, stops, suspended, turns


def main() -> None:
    """Run each with its defaults."""
    for measurement in (turns, stops, suspended, fairness, audit):
        asyncio.run(measurement.main())


if __name__ == "__main__":
    main()
