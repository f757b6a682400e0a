"""The garbage collector of processes that serve: what is built after the start is exempt once it has become costly."""

import subprocess
import sys

from tests.support.paths import ROOT

PROGRAM = """
import gc
from turnstile.runtime.event_loop import spare_collector

spare_collector()
spare_collector()
first = gc.get_freeze_count()
import xml.dom.minidom  # code that is loaded at its first use
later = [[]]
gc.collect()
print(not any(item is later for item in gc.get_objects()))  # without a look through it
kept = [[[]] for _ in range(2_000_000)]  # a heap that grows with use
gc.collect()
print(len(gc.callbacks), gc.get_freeze_count() - first >= 2_000_000, len(gc.get_objects()) < 1_000_000)
"""


def test_what_a_costly_collection_left_is_not_looked_through_again() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "1", "True", "True"]
