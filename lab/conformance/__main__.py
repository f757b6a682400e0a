"""`python -m lab.conformance`: breaks each sentence of docs/conformance.md once; the test that it cites must fail.

Each mutation is applied alone, in a copy of the tree, and only its own test runs there. A test that passes although its
sentence is broken holds nothing: it is printed, and the exit code is 1. `--intact` runs all cited tests without a
mutation instead, since a test that always fails holds nothing either. The servers are started once for each process.
With `--results FILE` the mutations that were found are kept there and not tried again, so that a run can go on.
"""

import argparse
import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from lab.conformance.mutations import MUTATIONS, Mutation
from turnstile.embedded import EmbeddedServers

console = Console(soft_wrap=True, markup=False, highlight=False)
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 120
"""The longest run of one test, which may wait for what its mutation took away."""
FAILED = 1
"""pytest's exit code where tests ran and some failed. A mutation that breaks the collection shows nothing."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the cited test said to a mutation."""

    mutation: Mutation
    code: int
    output: str
    seconds: float

    @property
    def verdict(self) -> str:
        """found, survived, or broken: the mutation kept the test from running at all."""
        return {0: "survived", FAILED: "found"}.get(self.code, "broken")


@dataclass(frozen=True, slots=True)
class Place:
    """A copy of the tree, and a file with the addresses of the servers on which its tests run."""

    tree: Path
    servers: Path

    def attempt(self, mutation: Mutation) -> Found:
        """Apply the mutation, run its test, and take it back."""
        path = self.tree / mutation.file
        before = path.read_text(encoding="utf-8")
        began = time.monotonic()
        path.write_text(mutation.applied_to(before), encoding="utf-8")
        try:
            code, output = self.pytest([mutation.test])
        finally:
            path.write_text(before, encoding="utf-8")
        return Found(mutation, code, output, time.monotonic() - began)

    def pytest(self, tests: Sequence[str]) -> tuple[int, str]:
        """Run tests with the tree's own packages, which its path puts before those that are installed."""
        environ = {
            "PYTHONPATH": str(self.tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TURNSTILE_TEST_SERVERS": str(self.servers),
        }
        limits = ("-p", "no:cacheprovider", f"--timeout={TIMEOUT_SECONDS}")
        command = (sys.executable, "-m", "pytest", "-q", *limits, *tests)
        process = subprocess.run(command, cwd=self.tree, env=os.environ | environ, capture_output=True, text=True)
        return process.returncode, process.stdout + process.stderr


def main() -> int:
    """Run the mutations that are wanted; returns 1 unless each was found."""
    options = _arguments()
    mutations = [
        mutation
        for mutation in MUTATIONS
        if options.only.lower() in f"{mutation.section}: {mutation.row} {mutation.test}".lower()
    ]
    if not mutations:
        console.print(f"no mutation has {options.only!r} in its section, sentence or test: --list shows all")
        return 1
    mutations = [m for m in mutations if not _is_found(m, options.results)]
    if options.list:
        for chosen in mutations:
            console.print(f"{chosen.section}: {chosen.row}… [{chosen.test}]")
        return 0
    return asyncio.run(_run(mutations, options))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.conformance", description=__doc__)
    parser.add_argument("--only", default="", help="rows whose section, sentence or test has this text")
    parser.add_argument("--processes", type=int, default=1, help="mutations at once, each in a copy of its own")
    parser.add_argument("--results", type=Path, help="a file of mutations that were found, which are not tried again")
    parser.add_argument("--intact", action="store_true", help="run the cited tests without a mutation")
    parser.add_argument("--list", action="store_true", help="print the rows and run nothing")
    return parser.parse_args()


async def _run(mutations: Sequence[Mutation], options: argparse.Namespace) -> int:
    queue = list(reversed(mutations))
    results: list[Found] = []

    async def work(directory: Path) -> int:
        place = Place(directory / "tree", directory / "servers.json")
        copy_tree(place.tree)
        async with EmbeddedServers(directory / ".turnstile") as running:
            place.servers.write_text(running.endpoints.model_dump_json(), encoding="utf-8")
            if options.intact:
                code, output = await asyncio.to_thread(place.pytest, sorted({m.test for m in mutations}))
                console.print(output[-6000:])
                return code
            while queue:
                mutation = queue.pop()
                if _is_found(mutation, options.results):  # meanwhile, by another run
                    continue
                result = await asyncio.to_thread(place.attempt, mutation)
                results.append(result)
                _record(result, f"{len(results)}/{len(mutations)}", options.results)
        return 0

    with TemporaryDirectory(prefix="turnstile-conformance-") as directory:
        processes = 1 if options.intact else options.processes
        codes = await asyncio.gather(*(work(Path(directory) / str(number)) for number in range(processes)))
    if options.intact:
        return max(codes)
    missed = [r for r in results if r.verdict != "found"]
    console.print(f"{len(results)} mutations: {len(results) - len(missed)} found")
    for missing in missed:
        console.print(
            f"  {missing.verdict}: {missing.mutation.section}: {missing.mutation.row}… [{missing.mutation.test}]"
        )
    return 1 if missed else 0


def _record(result: Found, number: str, path: Path | None) -> None:
    mutation = result.mutation
    console.print(f"{number} {result.verdict} {mutation.section}: {mutation.row}… ({result.seconds:.0f} s)")
    if result.verdict != "found":
        console.print(result.output[-3000:])
    elif path is not None:
        with path.open("a", encoding="utf-8") as kept:
            kept.write(f"{_digest(mutation)}\n")


def _is_found(mutation: Mutation, path: Path | None) -> bool:
    return path is not None and path.exists() and _digest(mutation) in path.read_text(encoding="utf-8").split()


def _digest(mutation: Mutation) -> str:
    return hashlib.sha256(repr(mutation).encode()).hexdigest()[:16]


def copy_tree(target: Path) -> None:
    """Copy what git knows or would add, links as links."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    for name in filter(None, map(os.fsdecode, names)):
        if os.path.lexists(ROOT / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


if __name__ == "__main__":
    sys.exit(main())
