"""The user that PostgreSQL runs as: it refuses root, so root starts it as `nobody`, any other user as itself."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from turnstile.embedded.server_errors import DataDirectoryUnusable, NoUnprivilegedUser

FALLBACKS = ("nobody", "postgres", "daemon")


@dataclass(frozen=True)
class Account:
    """A user of the system other than root."""

    user: int
    group: int

    def may_pass(self, *directories: Path) -> bool:
        """Whether the user may enter these directories and all of their parents."""
        return all(_open_to_others(part) for directory in directories for part in (directory, *directory.parents))

    def take(self, path: Path) -> None:
        """Changes the owner of the file or directory to this user."""
        os.chown(path, self.user, self.group)


def _open_to_others(directory: Path) -> bool:
    return bool(directory.stat().st_mode & stat.S_IXOTH)


def postgres_account(home: Path) -> Account | None:
    """The owner of the cluster in `home`, else an unprivileged user; None when this process is not root."""
    if os.geteuid() != 0:
        return None
    if home.exists() and (owner := home.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    for name in FALLBACKS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_uid, entry.pw_gid)
    raise NoUnprivilegedUser(
        f"PostgreSQL does not run as root, and none of the users {', '.join(FALLBACKS)} exists. "
        f"Add one (`useradd --system postgres`), or start as an ordinary user."
    )


def check_owner(data: Path) -> None:
    """Raises `DataDirectoryUnusable` if another user owns the directory: with files of two users neither could run."""
    owner = data.stat().st_uid
    if owner == os.geteuid():
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = str(owner)
    raise DataDirectoryUnusable(f"{data} belongs to the user {name}. Start as {name}, or choose another directory.")
