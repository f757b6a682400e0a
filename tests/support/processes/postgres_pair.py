"""Two real PostgreSQL servers, a primary and its standby, that tests may cut apart, kill -9, promote and bring back."""

import contextlib
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from tests.support.conditions import until
from turnstile.embedded.account import postgres_account
from turnstile.embedded.ports import free_port
from turnstile.embedded.postgres_server import INITDB, find_postgres_program
from turnstile.embedded.protocol import StartProcess
from turnstile.embedded.supervisor import Supervisor, clean_environment
from turnstile.ledger.histories import connect_to_host
from turnstile.ledger.postgres_errors import DRIVER_ERRORS

Name = Literal["a", "b"]
SETTINGS = (
    *("listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200", "shared_buffers=32MB"),
    *("fsync=off", "autovacuum=off", "wal_keep_size=256MB", "checkpoint_timeout=30min"),
)
"""A kill -9 loses nothing that the system has taken, so these servers need not wait for a disk."""


class PostgresPair:
    """Server `a`, the primary, and its standby `b`; whoever may log in is trusted."""

    def __init__(self, directory: Path, supervisor: Supervisor) -> None:
        self._directory = directory
        self._supervisor = supervisor
        self._account = postgres_account(directory / "a")
        self.ports: dict[Name, int] = {"a": free_port(), "b": free_port()}
        self.log = directory / "logs" / "postgres.log"

    def url(self, *names: Name, database: str = "turnstile") -> str:
        """The address of these servers, of both by default."""
        hosts = ",".join(f"127.0.0.1:{self.ports[name]}" for name in names or ("a", "b"))
        return f"postgresql://turnstile@{hosts}/{database}"

    async def start(self, name: Name) -> None:
        """Start it and wait until it answers."""
        settings = (word for setting in (*SETTINGS, f"port={self.ports[name]}") for word in ("-c", setting))
        await self._supervisor.start(self._program(name, "postgres", "-D", self._home(name), *settings))

        async def answers() -> bool:
            with contextlib.suppress(*DRIVER_ERRORS):
                await self.fetch(name, "SELECT", database="postgres")
                return True
            return False

        await until(answers, 30, f"PostgreSQL {name} answers")

    async def kill(self, name: Name) -> None:
        """SIGKILL."""
        await self._supervisor.kill(name)

    async def promote(self, name: Name) -> None:
        """Make the standby a primary; returns when it takes writes."""
        [done] = await self.fetch(name, "SELECT pg_promote(wait_seconds => 30) AS done")
        assert done["done"]

    async def make_synchronous(self) -> None:
        """From now on a commit on `a` is acknowledged only when `b` has it."""
        await self.fetch("a", "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await self.fetch("a", "SELECT pg_reload_conf()")
        await self._until_standby("sync")

    async def until_standby_has_all(self) -> None:
        """Wait until the standby has replayed what the primary has written so far."""
        [written] = await self.fetch("a", "SELECT pg_current_wal_lsn() AS at")

        async def there() -> bool:
            [found] = await self.fetch("b", "SELECT pg_last_wal_replay_lsn() >= $1 AS there", written["at"])
            return bool(found["there"])

        await until(there, 30, "the standby has all")

    async def cut(self) -> None:
        """`b` receives nothing more of `a`."""
        await self.fetch("b", "ALTER SYSTEM SET primary_conninfo = ''")
        await self.fetch("b", "SELECT pg_reload_conf()")

        async def alone() -> bool:
            return not await self.fetch("b", "SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'")

        await until(alone, 30, "the standby receives nothing more")

    async def fetch(self, name: Name, statement: str, *args: object, database: str = "turnstile") -> list[Any]:
        """The rows of a statement on this server."""
        conn = await connect_to_host(self.url(name, database=database), timeout=5)
        try:
            return await conn.fetch(statement, *args)
        finally:
            conn.terminate()

    async def next_transaction(self, name: Name) -> int:
        """The id that the next transaction that writes there will get."""
        [found] = await self.fetch(name, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS id")
        return found["id"]

    async def build(self) -> None:
        """Make the primary and its standby, which follows it asynchronously."""
        await self._run(
            "initdb", *(each for each in INITDB if not each.startswith("--auth")), "--auth=trust", "-D", self._own("a")
        )
        await self.start("a")
        await self.fetch("a", "CREATE DATABASE turnstile", database="postgres")
        login = ("-h", "127.0.0.1", "-p", str(self.ports["a"]), "-U", "turnstile", "--no-sync", "--checkpoint=fast")
        await self._run("pg_basebackup", *login, "-R", "-X", "stream", "-D", self._own("b"))
        await self.start("b")
        await self._until_standby("async")

    async def _until_standby(self, state: str) -> None:
        async def there() -> bool:
            found = await self.fetch("a", "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'")
            return [row["sync_state"] in (state, "quorum") for row in found] == [True]

        await until(there, 30, f"the standby is {state}")

    def _home(self, name: Name) -> str:
        return str(self._directory / name)

    def _own(self, name: Name) -> str:
        """Its directory, made empty and given to the account that runs it."""
        home = self._directory / name
        home.mkdir(mode=0o700)
        if self._account is not None:
            self._account.take(home)
        return str(home)

    async def _run(self, program: str, *words: str) -> None:
        code = await self._supervisor.run(self._program(program, program, *words))
        assert code == 0, self.log.read_text()[-2000:]

    def _program(self, name: str, program: str, *words: str) -> StartProcess:
        path = find_postgres_program(program)
        account = self._account
        return StartProcess(
            name=name,
            argv=(str(path), *words),
            env=clean_environment(LC_ALL="C"),
            log=self.log,
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
            grace_seconds=10,
            user=None if account is None else account.user,
            group=None if account is None else account.group,
            keep_search=account is not None and not account.may_pass(self._directory, path.parent),
        )


@asynccontextmanager
async def postgres_pair(directory: Path) -> AsyncGenerator[PostgresPair]:
    """A running pair with an empty database `turnstile`; `directory` exists and is empty."""
    for name in ("logs", "run"):
        (directory / name).mkdir()
    supervisor = await Supervisor.launch(directory)
    try:
        pair = PostgresPair(directory, supervisor)
        await pair.build()
        yield pair
    finally:
        await supervisor.close()
