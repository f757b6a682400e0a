"""PostgreSQL, NATS and Temporal as child processes, for `turnstile up`, the demo and the tests."""

from turnstile.embedded.endpoints import DEFAULT_DATA, Endpoints, find_data, find_endpoints, read_endpoints
from turnstile.embedded.server import ServerName
from turnstile.embedded.servers import EmbeddedServers, ServerFailure

__all__ = [
    "DEFAULT_DATA",
    "EmbeddedServers",
    "Endpoints",
    "ServerFailure",
    "ServerName",
    "find_data",
    "find_endpoints",
    "read_endpoints",
]
