"""An MCP server written by hand, that does whatever its file says; it needs no library, so it begins at once.

The file (`--plan`) is read before each answer: `{"tools": […], "calls": {TOOL: WHAT}}`, where WHAT is a result, or
`{"raw": LINE}` (`ID` in the line stands for the number of the call), or `{"hex": BYTES}` (`"ID"` does, and a plain
result follows), or the name of something that no server should do.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
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


def deep(levels: int) -> str:
    """Objects in objects."""
    return '{"a":' * levels + "1" + "}" * levels


def endless(line: str) -> None:
    """Write the same again and again."""
    while True:
        sys.stdout.write(line)


def told(**message: Any) -> str:
    """A notification as a line."""
    return json.dumps({"jsonrpc": "2.0", **message}) + "\n"


def progress(number: Any) -> str:
    """A notification of progress of a call, as a line."""
    return told(method="notifications/progress", params={"progressToken": number, "progress": 1})


def step(number: Any) -> None:
    """Say how far it is, and a moment later the result."""
    say(
        method="notifications/progress",
        params={"progressToken": number, "progress": 3, "total": 4, "message": "ne\x1barly"},
    )
    time.sleep(0.5)
    say(id=number, result={"content": []})


MISBEHAVIOUR: dict[str, Callable[[Any], None]] = {
    "step": step,
    "hang": lambda _: None,
    "stop reading": lambda _: time.sleep(3600),
    "die": lambda _: os._exit(1),
    "flood of messages": lambda _: endless(told(method="notifications/message", params={"level": "info", "data": "x"})),
    "flood of progress": lambda number: endless(progress(number)),
    "endless line": lambda _: endless("x" * 65_536),
    "no JSON": lambda _: endless("{this is no JSON\n"),
    "huge result": lambda number: say(id=number, result={"content": [{"type": "text", "text": "y" * 2_000_000}]}),
    "no result": lambda number: say(id=number, result={"content": "text"}),
    "deep result": lambda number: write(
        f'{{"jsonrpc":"2.0","id":{number},"result":{{"content":[],"structuredContent":{deep(5000)}}}}}'
    ),
    "error": lambda number: say(id=number, error={"code": -32000, "message": "no\0such\x1b[31m thing"}),
    "sampling": lambda _: say(id="s1", method="sampling/createMessage", params={"messages": [], "maxTokens": 10}),
    "roots": lambda _: say(id="r1", method="roots/list"),
}
"""What a call may be answered by, by name."""


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
                    MISBEHAVIOUR[what](number)
                case {"raw": str(line)}:
                    write(line.replace("ID", str(number)))
                case {"hex": str(data)}:
                    sys.stdout.buffer.write(bytes.fromhex(data).replace(b'"ID"', str(number).encode()) + b"\n")
                    say(id=number, result={})
                case result:
                    say(id=number, result=result)
        case None:
            note(f"answer {json.dumps(message.get('error', message.get('result')))}")
        case "notifications/cancelled":
            note("canceled")
        case str() if number is not None:
            say(id=number, error={"code": -32601, "message": "Method not found"})
        case _:
            pass


def main() -> None:
    """Serve until stdin ends."""
    global plan_file, notes
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
