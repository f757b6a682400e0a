"""Finds the NATS of a `turnstile up` in this directory or one above, for programs that were given no address.

An announced address counts only while the process that announced it lives: that process holds a file lock on the data
directory, and the system drops the lock when it dies. Standard library only. Costs reading a file or two.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Final, cast

DEFAULT_DATA: Final = Path(".turnstile")
ENDPOINTS: Final = "endpoints.json"
LOCK: Final = "lock"
DEFAULT_NATS: Final = "nats://127.0.0.1:4222"


def is_held(data: Path) -> bool:
    """Whether a living process holds the data directory."""
    try:
        descriptor = os.open(data / LOCK, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_trusted(data: Path) -> bool:
    """Whether a directory and its file of addresses are this user's or root's, and nobody else may write them."""
    try:
        stats = [data.stat(), (data / ENDPOINTS).stat()]
    except OSError:
        return False
    return all(stat.st_uid in (os.geteuid(), 0) and not stat.st_mode & 0o022 for stat in stats)


def find_data(data: Path | None = None) -> Path | None:
    """The first of `data`, or else of `.turnstile` here and above, that has endpoints and a living process; or None.

    One that is only found there must be this user's or root's, and nobody else may write in it: whoever makes a
    `.turnstile` in a directory above, such as /tmp, would otherwise choose where commands send what they are given.
    """
    here = Path.cwd()
    folders = (parent / DEFAULT_DATA for parent in (here, *here.parents))
    places = [data] if data is not None else [folder for folder in folders if is_trusted(folder)]
    return next((place for place in places if (place / ENDPOINTS).exists() and is_held(place)), None)


def find_nats() -> str | None:
    """The address of the NATS announced there; None if there is none, or this user may not read it."""
    try:
        data = find_data()
        announced: object = json.loads((data / ENDPOINTS).read_bytes()) if data is not None else None
    except (OSError, ValueError):
        return None
    url = cast("dict[str, object]", announced).get("nats_url") if isinstance(announced, dict) else None
    return url if isinstance(url, str) else None
