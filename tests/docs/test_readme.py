"""The README, typed as it stands: every file saved, every command run in order on one stack, every answer compared."""

from collections import Counter
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.readme import Reader, by_hand, shown_by

BLOCKS = [block for block in blocks_of(ROOT / "README.md") if block.language != "mermaid"]

FILES = [block for block in BLOCKS if block.language != "console"]


def test_what_is_not_run_says_so_to_the_reader() -> None:
    assert Counter(filter(None, map(by_hand, BLOCKS))) == {
        "it installs packages": 1,
        "it downloads a model": 1,
        "it needs a key, and costs money": 2,
    }
    assert {block.language for block in BLOCKS} == {"console", "python", "yaml", "toml"}


@pytest.mark.long
def test_every_other_block_runs_in_order(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        for block in BLOCKS:
            if by_hand(block):
                continue
            if block is FILES[0]:  # who saves all files at once is no worse off
                for file in FILES:
                    reader.save(file)
            printed = " ".join(reader.follow(block).split())
            for shown in shown_by(block):
                if block.language == "console":
                    assert shown.search(printed), f"{block.place} shows {shown.pattern!r}:\n{printed}"
    finally:
        reader.close()
