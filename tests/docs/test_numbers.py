"""Numbers and names in the documents that the program also knows: one stale copy fails here."""

import re
from collections.abc import Iterator
from typing import cast

from tests.docs.blocks import DOCUMENTS, ROOT
from tests.support.faults import points, table
from turnstile.embedded.files import FULL_MB, LOW_MB
from turnstile.local.weights import SMOLLM2
from turnstile.settings import Settings

TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in DOCUMENTS}


def stated_defaults() -> Iterator[tuple[str, str, str, float]]:
    """Each `[section].key` (number) of the documents: where it stands, section, key, number."""
    for name, text in TEXTS.items():
        for section, key, number in re.findall(r"`\[(\w+)\]\.(\w+)` \((\d[\d,]*(?:\.\d+)?)\b", text):
            yield name, section, key, float(number.replace(",", ""))


def test_every_default_in_a_document_is_that_of_the_settings() -> None:
    defaults = cast("dict[str, dict[str, object]]", Settings().model_dump())
    stated = list(stated_defaults())
    assert len(stated) > 15
    assert [line for line in stated if defaults[line[1]].get(line[2]) != line[3]] == []


def test_the_readme_counts_the_places_at_which_tests_kill() -> None:
    [stated] = re.findall(r"at each of\s+(\d+)\s+places", TEXTS["README.md"])
    kinds = {**points.PASSED, **table.PASSED}
    assert int(stated) == len({point for passed in kinds.values() for point in passed})


def test_the_console_is_entered_as_an_operator_of_the_default_project() -> None:
    [stated] = re.findall(r"operator of the project `(\w+)`", TEXTS["docs/console.md"])
    assert stated == Settings().protocol.default_project


def test_sizes_are_the_same_wherever_they_are_stated() -> None:
    readme, makefile = TEXTS["README.md"], (ROOT / "Makefile").read_text(encoding="utf-8")
    installed = set(re.findall(r"packages(?: into it)?,\s+(?:about )?(\d+) MB", readme + makefile))
    assert installed == set(re.findall(r"`\.venv` (\d+) MB", readme))
    assert len(installed) == 1
    weights = f"{SMOLLM2.wheel_bytes / 1e6:.0f} MB"
    assert f"{weights} of weights" in readme
    assert f"# {weights}, once" in TEXTS["docs/models.md"]
    assert re.findall(r"Below (\d+) MB `up` warns.*?less than (\d+) MB", TEXTS["docs/failures.md"], re.DOTALL) == [
        (str(LOW_MB), str(FULL_MB))
    ]
