"""`python -m lab.benchmarks`: measures audit, retention and fairness, one after the other."""

import asyncio

from lab.benchmarks import audit, fairness, retention


def main() -> None:
    """Run each benchmark with its defaults."""
    for measurement in (audit, fairness, retention):
        asyncio.run(measurement.main())


if __name__ == "__main__":
    main()
