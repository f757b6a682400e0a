"""The paths of the repository and of its tests."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
