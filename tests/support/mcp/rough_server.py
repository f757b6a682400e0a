"""An MCP server written by hand, that does whatever its file says; it needs no library, so it begins at once.

The file (`--plan`) is read before each answer: `{"tools": […], "calls": {TOOL: WHAT}}`, where WHAT is a result, or the
name of something that no server should do.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

Message = dict[str, Any]
plan_file = Path()
notes = Path(os.devnull)


def write(text: str) -> None:
    """Put a line out as it is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say(**message: Any) -> None:
    """Put a message out."""
    write(json.dumps({"jsonrpc": "2.0", **message}))


def note(line: str) -> None:
    """Write down what happened."""
    with notes.open("a") as file:
        file.write(f"{line}\n")


def deep(levels: int) -> Any:
    """Objects in objects."""
    return json.loads('{"a":' * levels + "1" + "}" * levels)


def misbehave(what: str, number: Any) -> None:
    """Do what a call is not answered by."""
    match what:
        case "hang":
            return
        case "stop reading":
            time.sleep(3600)
        case "die":
            os._exit(1)
        case "flood of notifications":
            line = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}})
            while True:
                write(line)
        case "flood of progress":
            line = json.dumps(
                {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": number, "progress": 1}}
            )
            while True:
                write(line)
        case "endless line":
            while True:
                sys.stdout.write("x" * 65_536)
        case "no JSON":
            while True:
                write("{this is no JSON")
        case "huge result":
            say(id=number, result={"content": [{"type": "text", "text": "y" * 2_000_000}]})
        case "no result":
            say(id=number, result={"content": "text"})
        case "deep result":
            write('{"jsonrpc":"2.0","id":%s,"result":{"content":[],"structuredContent":%s}}' % (number, json.dumps(deep(150))))
        case "error":
            say(id=number, error={"code": -32000, "message": "no\u0000such\u001b[31m thing"})
        case "sampling":
            say(id="s1", method="sampling/createMessage", params={"messages": [], "maxTokens": 10})
        case "roots":
            say(id="r1", method="roots/list")
        case _:
            raise ValueError(what)


def answer(message: Message) -> None:
    """Answer a request."""
    plan = json.loads(plan_file.read_text())
    number, method = message.get("id"), message.get("method")
    match method:
        case "initialize":
            say(
                id=number,
                result={
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "rough", "version": "1"},
                },
            )
        case "tools/list":
            say(id=number, result={"tools": plan["tools"]})
        case "tools/call":
            name = message["params"]["name"]
            note(f"call {name}")
            match plan["calls"].get(name, "hang"):
                case str(what):
                    misbehave(what, number)
                case result:
                    say(id=number, result=result)
        case None:
            note(f"answer {json.dumps(message.get('error', message.get('result')))}")
            if "waiting" in plan:
                say(id=plan["waiting"], result={"content": []})
        case "notifications/cancelled":
            note("canceled")
        case str() if number is not None:
            say(id=number, error={"code": -32601, "message": "Method not found"})
        case _:
            pass


def main() -> None:
    """Serve until stdin ends."""
    global plan_file, notes  # noqa: PLW0603 -- a program of one file
    parser = argparse.ArgumentParser()
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    options = parser.parse_args()
    plan_file, notes = options.plan, options.notes
    note("started")
    for line in sys.stdin:
        answer(json.loads(line))


if __name__ == "__main__":
    main()
