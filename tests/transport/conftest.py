"""The NATS server of these tests."""

from tests.support.processes.nats_server import conn, other, project, server

__all__ = ["conn", "other", "project", "server"]
