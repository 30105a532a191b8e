"""Asks a node for its health over gRPC and exits 0 when it is SERVING; it judges nothing else.

Usage: healthcheck.py HOST:PORT [SECONDS]. A container's own health check runs it against its own port.
"""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


def main(address: str, seconds: str = "2") -> int:
    # The node is this machine's own: a proxy of the environment is not for it.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=float(seconds), wait_for_ready=True
            )
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    print(f"{address}: {status}")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
