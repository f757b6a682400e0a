"""Parses the PostgreSQL address of `[database].url`: one host or several, as libpq and asyncpg read them.

`postgresql://[user[:password]@]host[:port][,host[:port]…]/database[?target_session_attrs=read-write&…]`. Of several
hosts the first is used that accepts a session and fits `target_session_attrs`.
"""

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, urlsplit

from turnstile.schema.errors import ConfigError

_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:@\s]*)(?::[0-9]{1,5})?\Z")
_PORT = re.compile(r":[0-9]+\Z")
_NO_HOST = "localhost"


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A PostgreSQL address; `shown` is the address without user, password and options, for logs."""

    url: str
    hosts: tuple[str, ...]
    shown: str

    def with_database(self, name: str) -> str:
        """The same address with another database."""
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def each(self) -> list[str]:
        """One address per host, in the order in which to try them."""
        split = urlsplit(self.url)
        if len(self.hosts) == 1 or not split.netloc or "prefer-standby" in split.query:
            return [self.url]
        login, at, _ = split.netloc.rpartition("@")
        return [split._replace(netloc=f"{login}{at}{host}").geturl() for host in self.hosts]


def read_address(url: str) -> DatabaseAddress:
    """Parse the address; raises `ConfigError`, whose message leaves out the text because it may hold a password."""
    try:
        split = urlsplit(url)
        hosts = _hosts(split)
    except ValueError:
        split, hosts = SplitResult("", "", "", "", ""), []
    if not hosts or not all(map(_HOST.match, hosts)):
        raise ConfigError(
            "[database].url cannot be read: it is postgresql://user:password@host:port/database, several hosts "
            "separated by commas; special characters in user and password are written as %2F, %40, …"
        )
    return DatabaseAddress(url, tuple(hosts), f"postgresql://{','.join(map(_with_port, hosts))}{split.path}")


def _hosts(split: SplitResult) -> list[str]:
    """The hosts, with their ports where given."""
    if hosts := split.netloc.rpartition("@")[2]:
        return hosts.split(",")
    options = parse_qs(split.query)
    names, ports = (options.get(name, [""])[-1].split(",") for name in ("host", "port"))
    if len(ports) == 1:
        ports = ports * len(names)
    return [f"{name or _NO_HOST}{port and ':'}{port}" for name, port in zip(names, ports, strict=True)]


def _with_port(host: str) -> str:
    return host if _PORT.search(host) else f"{host or _NO_HOST}:5432"
