"""Whole stacks, for what is installed beside them."""

from tests.support.processes.stacks import stacks

__all__ = ["stacks"]
