"""Parses NATS addresses of settings: servers, login, TLS files.

`nats://[user:password@|token@]host:port[?creds=/file]`, or `tls://` with
`?tls_ca=/file&tls_cert=/file&tls_key=/file`. Several servers are separated by commas; of an option given twice the last
one counts. Replies arrive at inboxes under `?inbox_prefix=…`, else under `_INBOX_{user}`, or `_INBOX` without a user.
"""

import importlib.util
import re
import ssl
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from turnstile.schema.errors import ConfigError

_OPTIONS = {"creds", "inbox_prefix", "tls_ca", "tls_cert", "tls_key"}
_USER_TOKEN = re.compile(r"[A-Za-z0-9_-]+\Z")


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """Servers, login, inbox prefix and TLS; `shown` is the address without its password, for logs."""

    servers: list[str]
    shown: str
    login: dict[str, str]
    inbox_prefix: str
    tls: ssl.SSLContext | None


def parse_address(url: str) -> NatsAddress:
    """Parse `url`; raises `ConfigError`, whose message leaves out the text because it may hold a password."""
    servers: list[str] = []
    login: dict[str, str] = {}
    options: dict[str, str] = {}
    for part in url.split(","):
        split, server = _server(part.strip())
        servers.append(server)
        # nats-py does not decode %40 and the like, so the login is passed beside the address
        if split.username is not None and split.password is not None:
            login |= {"user": unquote(split.username), "password": unquote(split.password)}
        elif split.username is not None:
            login["token"] = unquote(split.username)
        options |= {name: values[-1] for name, values in parse_qs(split.query).items()}
    if unknown := options.keys() - _OPTIONS:
        raise ConfigError(f"nats.servers: no option {min(unknown)!r}; there are {', '.join(sorted(_OPTIONS))}")
    if creds := options.get("creds"):
        if importlib.util.find_spec("nkeys") is None:
            raise ConfigError("nats.servers: a creds file needs the package nkeys; install nats-py[nkeys]")
        login["user_credentials"] = creds
    inbox_prefix = options.get("inbox_prefix") or _inbox_of(login.get("user", ""))
    return NatsAddress(servers, ", ".join(servers), login, inbox_prefix, _tls(servers, options))


def _inbox_of(user: str) -> str:
    """The default inbox prefix of a user; one per user, so that permissions can keep it from other users."""
    return f"_INBOX_{user}" if _USER_TOKEN.match(user) else "_INBOX"


def _server(text: str) -> tuple[SplitResult, str]:
    try:
        split = urlsplit(text if "://" in text else f"nats://{text}")
        port = split.port or 4222
    except ValueError as error:
        raise ConfigError(f"nats.servers: {error}") from None
    if not split.hostname or split.scheme not in ("nats", "tls"):
        raise ConfigError("nats.servers: a server is nats:// or tls:// and a host, such as nats://127.0.0.1:4222")
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    return split, f"{split.scheme}://{host}:{port}"


def _tls(servers: list[str], options: dict[str, str]) -> ssl.SSLContext | None:
    """The TLS context of `tls://` servers: it trusts the system's authorities unless `tls_ca` names others."""
    encrypted = [server.startswith("tls://") for server in servers]
    if any(encrypted) and not all(encrypted):
        raise ConfigError("nats.servers: either all servers are tls:// or none")
    named = options.keys() - {"creds", "inbox_prefix"}
    if not any(encrypted):
        if named:
            raise ConfigError(f"nats.servers: {min(named)} needs tls:// servers")
        return None
    if "tls_key" in options and "tls_cert" not in options:
        raise ConfigError("nats.servers: tls_key needs tls_cert")
    try:
        context = ssl.create_default_context(cafile=options.get("tls_ca"))
        if cert := options.get("tls_cert"):
            context.load_cert_chain(cert, options.get("tls_key"))
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"nats.servers: tls_ca, tls_cert or tls_key cannot be read ({error})") from None
    return context
