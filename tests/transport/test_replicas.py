"""How many servers of a cluster have the streams is raised by a migration, and never lowered by itself."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from lab.support.nats_server import NatsCluster
from tests.support.conditions import until
from turnstile.doctor.checks import Check
from turnstile.doctor.storage import check_storage
from turnstile.embedded import Endpoints
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.wire.subjects import CMD_STREAM
from turnstile.settings import NatsSettings, Settings
from turnstile.transport.connection import NatsConnection, StreamStorage, connect
from turnstile.transport.streams import JetStreamError, call_api, declare_streams

HERE = Endpoints(database_url="", nats_url="", temporal_address="", temporal_namespace="")


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsCluster]:
    """Three servers."""
    made = NatsCluster()
    made.start()
    yield made
    made.remove()


async def info(conn: NatsConnection) -> dict[str, Any]:
    """The definition of a stream."""
    return cast("dict[str, Any]", (await call_api(conn, f"STREAM.INFO.{CMD_STREAM}", {}))["config"])


async def stored(conn: NatsConnection, replicas: int) -> Check:
    """What `doctor` says of a stream's replicas, where the settings want so many."""
    settings = Settings(nats=NatsSettings.model_validate({"servers": ["nats://there"], "replicas": replicas}))
    [line] = [each for each in await check_storage(settings, HERE, conn) if each.name == f"storage of {CMD_STREAM}"]
    return line


@pytest.mark.long  # an election takes seconds; test_streams.py has the rule, test_doctor.py one server's lines
async def test_replicas_are_raised_by_a_migration_and_never_lowered(cluster: NatsCluster) -> None:
    conn = await connect(cluster.url, name="test")

    async def declared() -> bool:
        try:
            await declare_streams(conn, gone_seconds=0)
        except (JetStreamError, ServerUnavailable):  # the cluster has no leader yet
            return False
        return True

    await until(declared, 25, "the cluster makes streams")
    assert (await stored(conn, 1)).status == "ok"
    conn.storage = StreamStorage(replicas=3)
    await declare_streams(conn)
    assert (await info(conn))["num_replicas"] == 1
    line = await stored(conn, 3)
    assert (line.status, line.hint) == ("warn", "run `turnstile migrate`, which raises it")
    await declare_streams(conn, raise_replicas=True)
    assert (await info(conn))["num_replicas"] == 3

    async def current() -> bool:
        return (await stored(conn, 3)).status == "ok"

    await until(current, 25, "three servers have the stream")
    conn.storage = StreamStorage()
    await declare_streams(conn, raise_replicas=True)
    assert (await info(conn))["num_replicas"] == 3
    assert "never lowered" in (await stored(conn, 1)).says

    # one that is gone comes back as the settings say
    await call_api(conn, f"STREAM.DELETE.{CMD_STREAM}", {})
    conn.storage = StreamStorage(replicas=3, kind="memory")
    await declare_streams(conn, gone_seconds=0)
    made = await info(conn)
    assert (made["num_replicas"], made["storage"]) == (3, "memory")
    assert "[nats].storage is file" in (await stored(conn, 3)).says
    cluster.servers[2].kill()

    async def behind() -> bool:
        return "not up to date: n2" in (await stored(conn, 3)).says

    await until(behind, 25, "doctor misses one")
    await conn.close()
