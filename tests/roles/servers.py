"""The servers as `deploy/` sets them up: a NATS with a user for each role, and login roles in PostgreSQL."""

import os
import re
import subprocess
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote, urlsplit

import asyncpg

from lab.support.nats_server import NatsServer
from tests.support.paths import ROOT
from turnstile.embedded.postgres_server import find_postgres_program

DEPLOY = ROOT / "deploy"
OTHER = "other"
"""A project with a client of its own, `client_other`, added as docs/security.md says."""
USERS = ("admin", "bridge", "worker", "gateway", "tool", "client", "operator", "client_other")


def nats_conf() -> str:
    """`deploy/nats/nats.conf` with a client of another project."""
    text = (DEPLOY / "nats" / "nats.conf").read_text(encoding="utf-8")
    block = re.search(r"^    \{\n      user: client\n.*?^    \}\n", text, flags=re.MULTILINE | re.DOTALL)
    assert block is not None
    other = block[0].replace("v1r4.demo.", f"v1r4.{OTHER}.").replace("_INBOX_client.", "_INBOX_client_other.")
    other = other.replace("NATS_CLIENT_", "NATS_CLIENT_OTHER_").replace('.client"', '.client_other"')
    other = other.replace("user: client", "user: client_other")
    copies = '"_INBOX_client.>", "_INBOX_operator.>"'
    text = text.replace(block[0], block[0] + other).replace(copies, f'{copies}, "_INBOX_client_other.>"')
    return text.replace("http: 127.0.0.1:8222", "").replace("store_dir: /data", "")  # tests run beside each other


def password(user: str) -> str:
    """Of a user of NATS or a role of PostgreSQL."""
    return f"pass-of-{user}"


class GuardedNats(NatsServer):
    """A server with the users of `nats_conf`."""

    def begin(self) -> None:
        """Start it with their passwords in its environment."""
        named = {f"NATS_{user.upper()}_PASSWORD": password(user) for user in USERS}
        self.start("-c", self.write_config(nats_conf()), environment={**os.environ, **named})

    def url_of(self, user: str) -> str:
        """Where this user logs in."""
        return self.url.replace("://", f"://{user}:{password(user)}@")


ROLES = ("migrate", "bridge", "worker", "gateway", "temporal")
"""Of PostgreSQL, as `deploy/postgres/init.sh` names them."""


def run_init(superuser_url: str, passwords: Mapping[str, str]) -> None:
    """`deploy/postgres/init.sh` on a server; raises `CalledProcessError` with what psql says."""
    parts = urlsplit(superuser_url)
    programs = find_postgres_program("psql").parent
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port),
        "PGPASSWORD": parts.password or "",
        "POSTGRES_USER": parts.username or "",
        **{f"POSTGRES_{role.upper()}_PASSWORD": word for role, word in passwords.items()},
    }
    script = DEPLOY / "postgres" / "init.sh"
    subprocess.run([script], env=environment, check=True, capture_output=True, text=True)


async def logged_in(url: str) -> Any:  # asyncpg is untyped
    """A connection of asyncpg."""
    connect = cast("Any", asyncpg.connect)  # pyright: ignore[reportUnknownMemberType]
    return await connect(url)


def login_url(superuser_url: str, role: str, database: str = "turnstile") -> str:
    """Where a login role of `init.sh` finds a database."""
    name = role if role == "temporal" else f"turnstile_{role}"
    return (
        f"postgresql://{name}:{quote(password(role))}@{superuser_url.rpartition('@')[2].partition('/')[0]}/{database}"
    )
