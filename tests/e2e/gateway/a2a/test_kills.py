"""Deaths of a gateway in the middle of a stream, and of a bridge in the middle of a notification (protocol §17.3)."""

import json
import os
import signal
from pathlib import Path

import pytest
from a2a.client import A2AClientError, Client
from a2a.types import SubscribeToTaskRequest, TaskPushNotificationConfig

from tests.support.a2a.clients import Heard, a2a_client, ask, saying
from tests.support.a2a.receivers import receiving
from tests.support.conditions import until
from tests.support.gateway import client as web_client
from tests.support.gateway import gateway_process, serving, token_of
from tests.support.processes.process import Processes
from tests.support.processes.stack import QUICK, Stack
from tests.support.tenants import Tenant
from turnstile.runtime.faults import Fault
from turnstile.schema.ids import AgentTurnId

# A stack whose notifications may go to loopback.
pytestmark = [pytest.mark.long, pytest.mark.stack({**QUICK, "gateway": {"push_to_private_addresses": True}})]
WORDS = "".join(f"word-{number} " for number in range(200))
LONG = json.dumps({"steps": [{"text": WORDS, "chunks": 100, "delay_seconds": 0.05}]})


async def test_a_task_outlives_the_gateway_that_streamed_it(apart: Tenant, stack: Stack) -> None:
    await apart.agent("player")
    token = await token_of(stack, apart.project)
    heard = Heard()
    async with gateway_process(stack) as (pid, url), a2a_client(url, token) as (client, _):
        with pytest.raises(A2AClientError):
            await _hear_until_killed(client, heard, pid)
    assert heard.task is not None
    assert not heard.ended
    async with serving(stack) as url:
        async with a2a_client(url, token) as (client, _):
            rest = await Heard().hear(client.subscribe(SubscribeToTaskRequest(id=heard.task.id)))
            assert (rest.text, rest.state) == (WORDS, "TASK_STATE_COMPLETED")
        async with a2a_client(url, token, streaming=False) as (client, _):
            again = await ask(client, LONG, message_id="once")
            assert again.id == heard.task.id
    assert await apart.count("state.turn_outcomes") == 1
    assert await apart.task_events() == {heard.task.id: 1}


async def _hear_until_killed(client: Client, heard: Heard, pid: int) -> None:
    async for event in client.send_message(saying(LONG, message_id="once")):
        heard.take(event)
        if heard.updates == 10:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("point", [Fault.PUSH_CLAIMED, Fault.PUSH_SENT, Fault.PUSH_RECORDED])
async def test_a_receiver_is_told_though_the_bridge_dies(
    apart: Tenant, stack: Stack, processes: Processes, tmp_path: Path, point: Fault
) -> None:
    await apart.agent("player")
    token = await token_of(stack, apart.project)
    async with serving(stack) as url, receiving() as receiver, a2a_client(url, token, streaming=False) as (client, _):
        task = await ask(client, json.dumps({"steps": [{"text": "hello"}]}))
        await processes.bridge.stop()
        processes.bridge.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(tmp_path)}
        await processes.bridge.start()
        wanted = TaskPushNotificationConfig(task_id=task.id, url=receiver.url, id="one")
        await client.create_task_push_notification_config(wanted)
        await processes.bridge.died()
        processes.bridge.env = {}
        await processes.ensure()

        async def done() -> bool:
            return await apart.count("state.push_receivers", "status = 'done'") == 1

        await until(done, 60, "the receiver is told")
    assert {(each.id, each.state) for each in receiver.notes} == {(f"{task.id}.one.1", "COMPLETED")}
    assert len(receiver.notes) == (2 if point is Fault.PUSH_SENT else 1)
    assert await apart.task_events() == {AgentTurnId(task.id): 1}


async def test_a_webhook_gets_an_end_though_bridges_die_before_and_after_they_send_it(
    apart: Tenant, stack: Stack, processes: Processes, tmp_path: Path
) -> None:
    await apart.agent("player")
    token = await token_of(stack, apart.project)
    async with serving(stack) as url, receiving() as receiver, web_client(url, token) as web:
        asked = {"agent_id": "alice", "instruction": json.dumps({"steps": [{"text": "hello"}]})}
        turn = (await web.post("/v1/turns", json=asked, headers={"Prefer": "wait=60"})).json()["agent_turn_id"]
        await processes.bridge.stop()
        for point in (Fault.PUSH_CLAIMED, Fault.PUSH_SENT):
            faults = tmp_path / point
            faults.mkdir()
            processes.bridge.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(faults)}
            await processes.bridge.start()
            if point is Fault.PUSH_CLAIMED:
                made = await web.put(f"/v1/turns/{turn}/webhook", json={"url": receiver.url})
                assert made.status_code == 200, made.text
            await processes.bridge.died()
            assert len(receiver.notes) == (point is Fault.PUSH_SENT)
        processes.bridge.env = {}
        await processes.ensure()

        async def done() -> bool:
            return await apart.count("state.webhook_events", "status = 'done'") == 1

        await until(done, 60, "the end is sent")
    assert len(receiver.notes) == 2
    assert len({note.id for note in receiver.notes}) == 1
    assert [json.loads(note.body)["data"]["agent_turn_id"] for note in receiver.notes] == [turn] * 2
