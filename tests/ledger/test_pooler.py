"""A real PgBouncer before the ledger: session mode works as it comes, transaction mode is named and refused."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.conditions import until
from tests.support.ledger.agents import ALICE, add_agents, ask
from turnstile.embedded.ports import free_port
from turnstile.ledger.pool import Pool
from turnstile.schema.errors import ConfigError

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer here: apt-get install pgbouncer")
IGNORED = "plan_cache_mode,enable_seqscan,jit,idle_in_transaction_session_timeout,timezone"


@asynccontextmanager
async def bouncing(directory: Path, database_url: str, mode: str, extra: str = "") -> AsyncGenerator[str]:
    """The address of a pooler of this mode before the database."""
    to, port = urlsplit(database_url), free_port()
    server = f"host={to.hostname} port={to.port} user={to.username} password={to.password}"
    config = directory / "pgbouncer.ini"
    await asyncio.to_thread(
        config.write_text,
        f"[databases]\n* = {server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n"
        f"unix_socket_dir =\npool_mode = {mode}\n{extra}\n",
    )
    assert PGBOUNCER is not None
    for place, bits in ((directory, 0o755), (config, 0o644)):
        await asyncio.to_thread(place.chmod, bits)
    user = ("-u", "nobody") if os.geteuid() == 0 else ()
    program = await asyncio.create_subprocess_exec(
        PGBOUNCER, *user, str(config), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )

    async def there() -> bool:
        assert program.returncode is None, "pgbouncer ended"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await until(there, 25, "pgbouncer listens")
        yield f"postgresql://{to.username}@127.0.0.1:{port}{to.path}"
    finally:
        program.kill()
        await program.wait()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that the user of the pooler may read."""
    with tempfile.TemporaryDirectory(prefix="turnstile-pooler-", dir="/tmp") as made:
        yield Path(made)


@pytest.mark.parametrize("extra", ["", f"ignore_startup_parameters = {IGNORED}"], ids=["as_it_comes", "that_ignores"])
async def test_a_pooler_in_session_mode_works_without_its_administrator(
    reachable: Path, database_url: str, extra: str
) -> None:
    """With the settings of every session, and the locks of a session of one's own."""
    async with bouncing(reachable, database_url, "session", extra) as url:
        pool = Pool(url, size=3, name="pooled")
        await pool.open(writable=True)
        await add_agents(pool, ALICE)
        turns = await asyncio.gather(*(ask(pool, conversation_id=f"c{number}") for number in range(3)))
        assert {turn.reply.agent_id for turn in turns} == {ALICE}
        async with pool.connection() as conn:
            [row] = await conn.fetch("SELECT current_setting('plan_cache_mode') AS plan, current_setting('jit') AS jit")
        assert (row["plan"], row["jit"]) == ("force_generic_plan", "off")
        await pool.close()


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize(
    "extra",
    ["", f"ignore_startup_parameters = {IGNORED}", f"ignore_startup_parameters = {IGNORED}\nserver_round_robin = 1"],
    ids=["as_it_comes", "that_ignores", "round_robin"],
)
async def test_a_pooler_in_transaction_mode_is_named_and_refused(
    reachable: Path, database_url: str, mode: str, extra: str
) -> None:
    async with bouncing(reachable, database_url, mode, extra) as url:
        pool = Pool(url, size=2)
        with pytest.raises(ConfigError, match=r"connection pooler in transaction mode.*pool_mode = session"):
            await pool.open()
        await pool.close()
