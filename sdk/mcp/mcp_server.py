"""How an MCP server is reached, and what of it is allowed: an entry of the file of servers. Pure.

The file is on the host of the tools, not in the ledger: who may write the ledger must not be able to run commands here.
A secret is named by its environment variable and never written down. The pins say, for each project, which definition
of each tool its agents were given.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from turnstile.schema.base import Strict
from turnstile.schema.errors import BadRequest, ConfigError
from turnstile.schema.ids import ToolCallId, token

SEPARATOR = "__"
"""Stands between server and tool in the name by which models call it."""
SUFFIX = "call"
"""The last token of the subject of every server's calls."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*(_[A-Za-z0-9-]+)*\Z")
_LONGEST_NAME = 32
_TOOL, _OTHER = re.compile(r"[A-Za-z0-9_-]+\Z"), re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_ROW, _DIGEST = 64, 8
STATELESS: Final = "2026-07-28"
"""The revision of the protocol without sessions; the older ones begin with a handshake."""
_ENV = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
_Env = Annotated[str, Field(pattern=_ENV)]
_HeaderValue = Annotated[str, Field(pattern=f"^env:{_ENV[1:]}")]
_HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def server_name(value: str) -> str:
    """Return `value` if it is the name of a server; else raises `BadRequest`."""
    if not _NAME.match(value) or len(value) > _LONGEST_NAME:
        raise BadRequest(
            f"the name of an MCP server has 1 to {_LONGEST_NAME} characters of A-Z a-z 0-9 _ -, begins with a letter, "
            f"and has no {SEPARATOR} and no _ at its end, got {value[:60]!a}"
        )
    return value


def server_target(server: str) -> str:
    """The target of a server's calls, as in `cmd.tool.{target}.call`."""
    return token(f"mcp-{server_name(server)}", "target")


def tool_key(server: str, tool: str) -> str:
    """A tool's name here: its own, or, where models could not call that, one of allowed characters with a digest."""
    room = _LONGEST_ROW - len(server) - len(SEPARATOR)
    if _TOOL.match(tool) and len(tool) <= room:
        return tool
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{_OTHER.sub('_', tool)[: room - _DIGEST - 1]}-{digest}"


def row_name(server: str, tool: str) -> str:
    """The name by which models call a tool of a server."""
    return f"{server}{SEPARATOR}{tool}"


class OAuthClient(Strict):
    """The OAuth client that this host is at a server: its credentials are its own, no person's."""

    client_id: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,512}$")]
    client_secret_file: Path
    """Where the secret is; it is read whenever a connection begins."""
    scope: Annotated[str, Field(pattern=r"^[\x20-\x7e]{1,1024}$")] | None = None
    """What the token is for; None: what the server names."""
    issuer: Annotated[str, Field(pattern=r"^https?://[^\s]{1,2000}$")] | None = None
    """The authorization server that the secret is for; None: the one that the server names."""


class McpServer(Strict):
    """A server: a program that speaks on stdin and stdout, or the address of one over HTTP."""

    command: tuple[str, ...] = Field(default=(), max_length=256)
    """The program and its arguments."""
    cwd: Path | None = None
    """Where the program runs."""
    env: tuple[_Env, ...] = Field(default=(), max_length=64)
    """Environment variables of this host that the program is given, beside PATH, HOME, LANG and the like."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s]{1,2000}$")] | None = None
    """The address of a server over HTTP."""
    headers: dict[_HeaderName, _HeaderValue] = Field(default_factory=dict, max_length=32)
    """Headers of each request: `env:NAME` stands for the value of a variable."""
    oauth: OAuthClient | None = None
    """The OAuth client by which a server with a url is asked."""
    transport: Literal["http", "sse"] | None = None
    """How a server with a url is reached: `sse` is HTTP+SSE of 2024-11-05. None: as it turns out."""
    protocol: Literal["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"] | None = None
    """The revision of the protocol that is spoken; None: the newest that both speak."""
    tools: tuple[str, ...] | None = None
    """The tools that may be used, as `turnstile mcp list` names them; all if None."""
    timeout_seconds: float = Field(default=60.0, gt=0, le=86_400)
    """How long a call may take, without the time in which a person is asked."""
    connect_seconds: float = Field(default=30.0, gt=0, le=600)
    """How long it may take to begin, and to list its tools."""
    concurrency: int = Field(default=8, ge=1, le=256)
    """Calls of it that run at once."""
    repeat: Literal["safe", "unsafe", "hints"] = "safe"
    """Whether a call may be sent again when the process that made it dies; `hints`: where the server says so."""
    max_message_bytes: int = Field(default=4_194_304, ge=4096, le=67_108_864)
    """The longest message that is read from it."""
    max_result_bytes: int = Field(default=262_144, ge=1024, le=450_000)
    """The longest text or value that is passed on."""
    max_attachment_bytes: int = Field(default=131_072, ge=0, le=393_216)
    """How much of images, audio and files is kept beside a result, in base64."""
    pins: dict[str, dict[str, _Digest]] = Field(default_factory=dict)
    """By project and tool, the digest of the definition that was accepted."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("has either a command or a url")
        if self.url is None and self.headers:
            raise ValueError("headers are for a server with a url")
        if self.url is None and (self.transport is not None or self.oauth is not None):
            raise ValueError("transport and oauth are for a server with a url")
        if self.oauth is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("has an OAuth client or a header Authorization, not both")
        if self.transport == "sse" and self.protocol == STATELESS:
            raise ValueError(f"the transport sse has sessions, which the protocol {STATELESS} has not")
        return self

    def allows(self, tool: str) -> bool:
        """Whether the tool may be used."""
        return self.tools is None or tool in self.tools

    def connection(self) -> "McpServer":
        """The same without its pins: what a running connection depends on."""
        return self.model_copy(update={"pins": {}})

    def with_pins(self, project: str, pins: Mapping[str, str]) -> "McpServer":
        """The same with these pins of one project."""
        others = {name: pin for name, pin in self.pins.items() if name != project}
        return self.model_copy(update={"pins": others | ({project: dict(sorted(pins.items()))} if pins else {})})


def value_of_env(name: str, environ: Mapping[str, str]) -> str:
    """The value of a variable; raises `ConfigError` if this host has none."""
    if (value := environ.get(name)) is None:
        raise ConfigError(f"the environment has no variable {name}, which the MCP server is to be given")
    return value


def call_meta(call: ToolCallId) -> dict[str, str]:
    """The metadata that a server gets with a call: its id, which is the same each time it is run."""
    return {"turnstile/tool_call_id": call}
