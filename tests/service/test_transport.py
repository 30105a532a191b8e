"""The options of channels and servers: gRPC passes over a name that it does not know, without a word."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from retinue.service.transport import CHANNEL_OPTIONS, KEEPALIVE_S, PING_INTERVAL_S, SERVER_OPTIONS


@pytest.mark.parametrize("name", sorted({name for name, _ in (*CHANNEL_OPTIONS, *SERVER_OPTIONS)}))
def test_every_option_is_one_that_grpc_knows(name: str) -> None:
    spec = find_spec("grpc._cython.cygrpc")
    assert spec is not None
    assert spec.origin is not None
    assert name.encode() in Path(spec.origin).read_bytes()


def test_a_server_allows_more_pings_than_a_client_sends() -> None:
    assert dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"] == PING_INTERVAL_S * 1000
    assert PING_INTERVAL_S < KEEPALIVE_S / 2
