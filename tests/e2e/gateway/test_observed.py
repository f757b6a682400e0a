"""What log and metrics have of requests: route, status, time and bytes, and nothing that was sent or answered."""

import json
import logging
import re

import httpx
import pytest

from tests.support.gateway import token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant
from turnstile.gateway.app import Gateway
from turnstile.gateway.bounds import Doors, GatewayLimits
from turnstile.ledger.pool import Pool
from turnstile.schema.ids import ChannelId
from turnstile.telemetry.metrics import PrometheusMeter

MARKER = "marker9917"


async def test_no_content_is_logged_and_every_request_is_counted(
    here: Stack, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    await tenant.agent("player")
    token = await token_of(here, tenant.project)
    caplog.set_level(logging.DEBUG, logger="turnstile")
    pool, meter = Pool(here.endpoints.database_url, size=2, name="observed", read_only=True), PrometheusMeter()
    doors = Doors(frozenset({"here"}), frozenset())
    gateway = Gateway(
        *(pool, here.conn, GatewayLimits(heartbeat_seconds=0.2), doors),
        default_channel=ChannelId("public"),
        abort=lambda _: None,
        meter=meter,
    )
    transport = httpx.ASGITransport(app=gateway.app)
    headers = {"authorization": f"Bearer {token}", "x-other": MARKER, "tracestate": f"x={MARKER}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers) as web:
        said = json.dumps({"steps": [{"text": f"answer {MARKER}"}]})
        body = {"agent_id": ALICE, "instruction": said, "conversation_id": MARKER, "metadata": {"a": MARKER}}
        asked = {"prefer": "wait=20", "idempotency-key": MARKER}
        made = await web.post("/v1/turns", json=body, headers=asked)
        assert made.status_code == 201, made.text
        path = made.headers["location"]
        assert MARKER in (await web.get(f"{path}/events")).text
        await web.get(f"{path}/events", headers={"last-event-id": f"{path.rpartition('/')[2]}:1.0.1.1"})
        await web.get(f"/v1/turns/{MARKER}")
        await web.get("/v1/turns", params={MARKER: MARKER})
        await web.get(f"/{MARKER}")
        await web.request(MARKER, "/v1/turns")
        await web.post("/v1/turns", content=MARKER, headers={"content-type": "application/json"})
        await web.get("/v1/turns", headers={"authorization": f"Bearer {MARKER}"})
        await web.get("/v1/turns", headers={"host": MARKER})
        await web.get("/v1/turns", headers={"origin": MARKER})
        await web.get("/health")
    text = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert MARKER not in text
    assert token.split("_", 2)[2] not in text
    lines = [record.getMessage() for record in caplog.records if record.name == "turnstile.gateway.access"]
    assert len(lines) == 12
    assert re.fullmatch(r"POST create_turn 201 \d+ ms", lines[0])
    assert "other unmatched 405" in "\n".join(lines)
    counted = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for family in meter.registry.collect()
        for sample in family.samples
        if sample.name == "turnstile_http_requests_total"
    }
    assert counted["create_turn", "201"] == counted["create_turn", "400"] == counted["health", "200"] == 1
    assert counted["get_turn", "404"] == counted["unmatched", "404"] == counted["unmatched", "403"] == 1
    assert counted["stream_turn", "200"] == 2
    value = meter.registry.get_sample_value
    assert [value("turnstile_http_streams_total", {"resumed": each}) for each in ("no", "yes")] == [1, 1]
    assert (value("turnstile_http_bytes_total") or 0) > 1000
    assert value("turnstile_http_open_streams") == 0
    await gateway.feeds.close()
    await pool.close()
