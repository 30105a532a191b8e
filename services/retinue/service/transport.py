"""The options of every channel and server of the mesh, in one place since the two ends must agree.

It holds numbers only: neither end is built here.
"""

from __future__ import annotations

from typing import Final

# gRPC's own 4 MiB would refuse a page of history; beyond this limit both ends say so.
MESSAGE_BYTES: Final = 64 * 1024 * 1024
KEEPALIVE_S: Final = 20
KEEPALIVE_TIMEOUT_S: Final = 5
# A server counts a ping that comes sooner as abuse, so this lies well below what our clients do.
PING_INTERVAL_S: Final = 5

_SIZES: Final = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
)
_KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *_SIZES,
    *_KEEPALIVE,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Named for back-off, but it is how long one attempt to connect may take (20 s unless set).
    ("grpc.min_reconnect_backoff_ms", 2000),
    # The retry rule is the client's: a hidden repeat would run a side effect twice.
    ("grpc.enable_retries", 0),
    # Nodes are reached where they registered, never through the proxy of the environment.
    ("grpc.enable_http_proxy", 0),
    # Two clients of one process must not wait out each other's reconnect back-off.
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *_SIZES,
    *_KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_S * 1000),
    # Without it a taken port is silently shared, and half of the calls go to the other process.
    ("grpc.so_reuseport", 0),
)
