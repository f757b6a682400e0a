"""What a gateway is held against: sizes, times and rates, as its settings say; and what it says of itself."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """The limits of one gateway; times in seconds, sizes in bytes."""

    body_bytes: int = 1 << 20
    """Of one request."""
    connections: int = 5000
    token_streams: int = 2000
    """Open streams of one token."""
    rate: float = 100.0
    """Requests a second of one token; 0: no limit."""
    burst: int = 500
    request_seconds: float = 10.0
    """How long a client may take to send one request, from its first byte to its last."""
    idle_seconds: float = 30.0
    slow_reader_seconds: float = 20.0
    heartbeat_seconds: float = 15.0
    stream_bytes: int = 2 << 20
    """Of one turn's text that is kept for its streams."""
    file_bytes: int = 100 << 20
    """Of one file."""


@dataclass(frozen=True, slots=True)
class Doors:
    """By which names requests may call a gateway, and which pages may ask it."""

    hosts: frozenset[str]
    """Names, each with and without its port, in lower case."""
    origins: frozenset[str]
    any_address: bool = False
    """Whether a bare IP address will do: no name can be rebound to it."""
    proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Whose `X-Forwarded-For` says where a request comes from."""


@dataclass(frozen=True, slots=True)
class About:
    """What a gateway says of itself to other agents."""

    url: str = ""
    """Where it is reached."""
    organization: str = ""
    """Who runs it; empty if that is not said."""
    organization_url: str = ""
    default_agent: str = ""
    """The agent, or `profile:NAME`, whose card is at the root; empty for none."""
    private_receivers: bool = False
    """Whether notifications may go to private addresses."""
