"""A button without a browser: presses it, and prints each ack as one line of JSON.

python examples/ui/press.py --agent guide switch_light '{"on": true}'
"""

import argparse
import asyncio
import json

from turnstile import connect
from turnstile.schema.ids import AgentId
from turnstile.schema.states import ActionStatus


async def press(options: argparse.Namespace) -> int:
    """Exit code 0 once the action is done, 1 where it is busy or rejected."""
    args, heard = json.loads(options.args), 0
    async with (
        connect(options.nats, project=options.project, channel=options.channel) as client,
        asyncio.timeout(options.timeout),
        client.bridge.ui_action(AgentId(options.agent), options.tool, args, action_id=options.action_id) as acks,
    ):
        while True:
            ack = await acks.next(heard)
            print(ack.model_dump_json(exclude_none=True), flush=True)  # noqa: T201 -- what this program is for
            if ack.status is not ActionStatus.ACCEPTED:
                return int(ack.status is not ActionStatus.DONE)
            heard += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", help="nats://… (default: that of a `turnstile up` in this directory or above)")
    parser.add_argument("--project", default="demo")
    parser.add_argument("--channel", default="public")
    parser.add_argument("--agent", required=True)
    parser.add_argument("--action-id", help="press again under the same id: it is still one action")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("tool")
    parser.add_argument("args", nargs="?", default="{}")
    raise SystemExit(asyncio.run(press(parser.parse_args())))


if __name__ == "__main__":
    main()
