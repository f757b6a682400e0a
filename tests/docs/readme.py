"""A reader of the README: saves its files, types its commands in two terminals, and compares what it shows."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.docs.blocks import ROOT, Block

BY_HAND = "# by hand: "
"""Begins the first line of a block that a test cannot run; the rest of the line tells the reader why."""
_FILE = re.compile(r"# ([\w./]+\.(?:py|yaml|toml))$")
_ID = re.compile(r"\b[0-9a-f]{4,}(?:-[0-9a-f]{4,})*…?")
_SECONDS = 90.0


def by_hand(block: Block) -> str | None:
    """Why the block is not run, if it says so."""
    first = block.text.partition("\n")[0]
    return first.removeprefix(BY_HAND) if first.startswith(BY_HAND) else None


def commands_of(block: Block) -> list[str]:
    """What a reader types."""
    return [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ ")]


def shown_by(block: Block) -> list[re.Pattern[str]]:
    """Each line of output that it shows, whatever the ids, the blanks, and what `…` stands for."""
    lines = [line for line in block.text.splitlines() if line.strip() and not line.startswith("$ ")]
    masked = [_ID.sub("…", " ".join(line.split())) for line in lines]
    return [re.compile(".*".join(map(re.escape, line.split("…")))) for line in masked]


class Reader:
    """In a directory that looks like a fresh clone after `make demo`. Holds the process of the first terminal."""

    def __init__(self, clone: Path) -> None:
        self._clone = clone
        self._state = clone / ".terminal"
        self._up: subprocess.Popen[bytes] | None = None
        (clone / ".venv").mkdir()
        (clone / ".venv" / "bin").symlink_to(Path(sys.prefix) / "bin")
        (clone / "examples").symlink_to(ROOT / "examples")
        self._state.write_text(f"cd {clone}\n")
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("TURNSTILE__")}
        # A step of a worker that was killed is given to another after this, and not after 10 s.
        self._environment = {**kept, "TURNSTILE__WORKER__ACTIVITY_HEARTBEAT_TIMEOUT_SECONDS": "2"}

    def follow(self, block: Block) -> str:
        """Do what the block says; returns what was printed. Raises `AssertionError` where a command fails."""
        if block.language == "console":
            return self._type(commands_of(block))
        self.save(block)
        return ""

    def save(self, block: Block) -> None:
        """Save a file under the name in its first line."""
        named = _FILE.match(block.text.partition("\n")[0])
        assert named, f"{block.place}: the first line of a file is its name"
        path = self._directory() / named[1]
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text)

    def close(self) -> None:
        """Ctrl-C in the first terminal; what the second one left in the background ends with it."""
        self._interrupt()
        for pid in (self._clone / ".background").read_text().split() if (self._clone / ".background").exists() else ():
            try:
                os.kill(int(pid), signal.SIGTERM)
            except ProcessLookupError:
                continue

    def _type(self, commands: list[str]) -> str:
        if commands[-1].startswith("turnstile up"):
            printed = self._run(commands[:-1])
            self._start(commands[-1].split()[1:])
            return printed
        return self._run(commands)

    def _run(self, commands: list[str]) -> str:
        """In the second terminal: its directory, variables and background processes stay."""
        keep = f'jobs -p >> {self._clone}/.background; {{ export -p; echo "cd $PWD"; }} > {self._state}'
        script = "\n".join([f"source {self._state}", "set -eo pipefail", *commands, keep])
        with (self._clone / ".printed").open("w+b") as printed:
            ran = subprocess.run(
                ["bash", "-c", script],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                timeout=_SECONDS,
                check=False,
            )
            printed.seek(0)
            told = printed.read().decode()
        assert ran.returncode == 0, f"exit code {ran.returncode} of {commands}:\n{told}"
        return told

    def _start(self, arguments: list[str]) -> None:
        self._interrupt()
        log = self._clone / "up.log"
        with log.open("wb") as told:
            self._up = subprocess.Popen(
                [Path(sys.prefix) / "bin" / "turnstile", *arguments],
                cwd=self._directory(),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
            )
        until = time.monotonic() + _SECONDS
        while "serves" not in log.read_text():
            assert self._up.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)

    def _interrupt(self) -> None:
        if self._up is not None:
            if self._up.poll() is None:
                self._up.send_signal(signal.SIGINT)
            self._up.wait(30)

    def _directory(self) -> Path:
        return Path(self._state.read_text().strip().splitlines()[-1].removeprefix("cd "))
