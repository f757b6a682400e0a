"""A client where nothing runs says what to do, and waits no longer than it is told."""

import socket
import time
from pathlib import Path

import pytest

from turnstile import Client
from turnstile.schema.errors import ConfigError, ServerUnavailable


async def test_a_client_outside_of_a_directory_says_what_the_command_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TURNSTILE_URL", "NATS_URL"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 4222)) == 0:
            pytest.skip("something listens at NATS's own port on this machine")
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"nothing is running here .* start `turnstile up`"):
        await Client().open()
    assert time.monotonic() - began < 5


async def test_a_client_waits_for_a_server_as_long_as_it_is_told() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"nats://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServerUnavailable, match=r"NATS did not answer within 0\.3 s"):
            await Client(address, connect_timeout=0.3).open()
