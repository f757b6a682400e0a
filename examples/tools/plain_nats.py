"""A tool with nothing but a NATS client: any language that has one can do the same (docs/tools.md, the wire).

python examples/tools/plain_nats.py nats://TOKEN@127.0.0.1:4222

The address, with its token, is `nats_url` in `.turnstile/endpoints.json` where `turnstile up` runs.

It hears commands on core NATS, reads the call's arguments with `describe`, answers with `report`. What it misses while
it is away the kernel sends again, 30 seconds later by default; what it hears twice, `describe` says is answered.
"""

import asyncio
import hashlib
import json
import signal
import sys
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error

COMMANDS = "cg.v1r4.*.*.cmd.tool.plain.hash"
PASSED_ON = ("traceparent", "CG-Agent-Id", "CG-Turn-Id", "CG-Tool-Call-Id", "CG-Recursion-Depth")


async def main(url: str) -> None:
    """Answers calls until SIGTERM."""
    nc = Client()
    await nc.connect(url, max_reconnect_attempts=-1)
    calls: dict[str, asyncio.Task[None]] = {}

    async def ask(command: Msg, verb: str, payload: dict[str, Any]) -> dict[str, Any]:
        _, _, project, channel, *_ = command.subject.split(".")
        kept = {name: value for name, value in (command.headers or {}).items() if name in PASSED_ON}
        subject = f"cg.v1r4.{project}.{channel}.req.sys.bridge.{verb}"
        answer = await nc.request(subject, json.dumps(payload).encode(), timeout=10, headers=kept)
        return json.loads(answer.data)

    async def run(command: Msg, call_id: str) -> None:
        try:
            await answer(command, call_id)
        except Error as error:  # no bridge now: the kernel sends the command again
            sys.stderr.write(f"{call_id}: {error}\n")

    async def answer(command: Msg, call_id: str) -> None:
        described = await ask(command, "describe", {"tool_call_id": call_id})
        if described["status"] != "accepted" or described["call"]["wait_status"] != "waiting":
            return  # no such call, or somebody answered it
        text = described["call"]["content"]["arguments"].get("text")
        report: dict[str, Any] = {"tool_call_id": call_id}
        if isinstance(text, str):
            digest = hashlib.sha256(text.encode()).hexdigest()
            report |= {"status": "success", "result": {"algorithm": "sha256", "hex": digest}}
        else:
            report |= {"status": "failed", "error": {"code": "invalid_arguments", "message": "text must be a string"}}
        for pause in (0.5, 1, 2, 4, 8, 16):
            # only these two are final; a report that came before is no error ("duplicate": true)
            if (await ask(command, "report", report))["status"] in {"accepted", "rejected"}:
                return
            await asyncio.sleep(pause)  # the bridge is busy, or its database cannot: keep the result and try again

    async def on_command(command: Msg) -> None:
        call_id = (command.headers or {}).get("CG-Tool-Call-Id", "")
        if call_id and call_id not in calls:  # a repeat of a call that runs here
            calls[call_id] = asyncio.create_task(run(command, call_id))
            calls[call_id].add_done_callback(lambda _: calls.pop(call_id))

    # a queue group: of several copies of this program, one hears each command
    await nc.subscribe(COMMANDS, queue="plain-hash", cb=on_command)  # pyright: ignore[reportUnknownMemberType]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await asyncio.gather(*calls.values(), return_exceptions=True)
    await nc.drain()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
