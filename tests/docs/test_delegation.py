"""The examples of docs/delegation.md, typed as they stand on one stack; every answer is compared.

Their cheap twin is tests/e2e/delegation/test_examples.py, without a terminal.
"""

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.readme import Reader, shown_by

BLOCKS = [block for block in blocks_of(ROOT / "docs" / "delegation.md") if block.language == "console"]
EXAMPLES = 7
"""The blocks of the section that a reader follows; those after it stand for themselves."""


@pytest.mark.long
def test_every_example_runs_in_order(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        for block in BLOCKS[:EXAMPLES]:
            printed = " ".join(reader.follow(block).split())
            for shown in shown_by(block):
                assert shown.search(printed), f"{block.place} shows {shown.pattern!r}:\n{printed}"
    finally:
        reader.close()
