"""The file of MCP servers: `mcp.yaml` in the data directory, of its owner only, since it says which programs are run.

time:
  command: [mcp-server-time]
  pins: {demo: {get_current_time: 3f9a…}}
tracker:
  url: https://tracker.example/mcp
  headers: {Authorization: env:TRACKER_AUTHORIZATION}
"""

import stat
from pathlib import Path

import yaml
from pydantic import RootModel, ValidationError, field_validator

from turnstile.embedded.files import private_directory, write_private
from turnstile.schema.errors import BadRequest, ConfigError
from turnstile.schema.validation import faults_in
from turnstile.sdk.mcp.mcp_server import McpServer, server_name

_LARGEST = 16_777_216
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class McpServers(RootModel[dict[str, McpServer]]):
    """All servers by name."""

    @field_validator("root")
    @classmethod
    def _names(cls, value: dict[str, McpServer]) -> dict[str, McpServer]:
        for name in value:
            try:
                server_name(name)
            except BadRequest as error:
                raise ValueError(str(error)) from None
        return value


class ServerFile:
    """The file, read again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._servers: dict[str, McpServer] = {}

    def read(self) -> dict[str, McpServer]:
        """The servers, none if there is no file; raises `ConfigError`."""
        try:
            status = self.path.stat()
            if status.st_mode & _OTHERS_WRITE:
                raise ConfigError(f"{self.path} can be written by others, and says what is run here: chmod 600 it")
            seen = status.st_mtime_ns, status.st_size, status.st_ino
            if seen != self._seen:
                self._servers = _parsed(self.path, status.st_size)
                self._seen = seen
        except FileNotFoundError:
            self._seen, self._servers = None, {}
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from None
        return dict(self._servers)

    def put(self, name: str, entry: McpServer) -> None:
        """Add or replace a server."""
        self._write({**self.read(), name: entry})

    def remove(self, name: str) -> None:
        """Forget a server."""
        self._write({other: entry for other, entry in self.read().items() if other != name})

    def _write(self, servers: dict[str, McpServer]) -> None:
        document = McpServers(servers).model_dump(mode="json", exclude_defaults=True)
        text = yaml.safe_dump(document, sort_keys=True, allow_unicode=True, width=110)
        try:
            private_directory(self.path.parent)
            write_private(self.path, text)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from None


def _parsed(path: Path, size: int) -> dict[str, McpServer]:
    if size > _LARGEST:
        raise ConfigError(f"{path} has more than {_LARGEST} bytes")
    try:
        value: object = yaml.safe_load(path.read_text(encoding="utf-8"))
        return McpServers.model_validate({} if value is None else value).root
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())[:300]}") from None
    except ValidationError as error:
        problems = (fault.said() for fault in faults_in(error, McpServers))
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in problems)) from None
