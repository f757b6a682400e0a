"""Names of tools, and whom they ask: an agent by its id, a profile with instances, or the gateway itself. Pure.

No two have one name, and each name leads back to its own. An agent's id is its tool's name; one that begins with
`agent_`, `profile_` or `turn_` has `agent_` before it. A profile's is `profile_` and its name, with each byte of UTF-8
that no name of a tool may have as a dot and two hexadecimal digits. A name of more than `LONGEST` characters is none.
"""

import re
from typing import Final

from turnstile.gateway.addressed import PROFILE

TURN_GET: Final = "turn_get"
TURN_STOP: Final = "turn_stop"
LONGEST: Final = 128
_AGENT = "agent_"
_OF_PROFILE = "profile_"
_RESERVED = (_AGENT, _OF_PROFILE, "turn_")
_ODD = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED = re.compile(rb"\.([0-9a-f]{2})")


def tool_name(named: str) -> str | None:
    """The tool's name for an agent's id or `profile:NAME`; None if it would be too long."""
    name = _AGENT + named if named.startswith(_RESERVED) else named
    if named.startswith(PROFILE):
        odd = _ODD.sub(lambda m: b".%02x" % m[0][0], named.removeprefix(PROFILE).encode())
        name = _OF_PROFILE + odd.decode("ascii")
    return name if len(name) <= LONGEST else None


def named_by(tool: str) -> str | None:
    """The agent's id or `profile:NAME` that a tool's name stands for; None for one that is no such name."""
    if len(tool) > LONGEST or not tool.isascii():
        return None
    named = tool.removeprefix(_AGENT)
    if tool.startswith(_OF_PROFILE):
        plain = _ESCAPED.sub(lambda m: bytes.fromhex(m[1].decode()), tool.removeprefix(_OF_PROFILE).encode())
        named = PROFILE + plain.decode("utf-8", "replace")
    return named if tool_name(named) == tool else None
