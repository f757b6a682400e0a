"""What upkeep costs, one after the other: `python -m lab.benchmarks`."""

import asyncio

from lab.benchmarks import audit, fairness, retention


def main() -> None:
    """Run each with its defaults."""
    for measurement in (audit, fairness, retention):
        asyncio.run(measurement.main())


if __name__ == "__main__":
    main()
