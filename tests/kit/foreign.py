"""A service that knows nothing of Retinue: stock generated code and reflection, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

PROTO = """
syntax = "proto3";
package shop;
enum Size { SMALL = 0; LARGE = 1; }
message Box { string label = 1; repeated Box inside = 2; }
message Order {
  Box box = 1;
  map<string, int32> counts = 2;
  oneof pay { string card = 3; int64 cash = 4; }
  Size size = 5;
  uint64 number = 6;
  repeated int64 ids = 7;
}
message Receipt { string text = 1; uint64 number = 2; Order order = 3; }
message Count { int32 to = 1; }
service Shop {
  rpc Buy(Order) returns (Receipt);
  rpc Tick(Count) returns (stream Receipt);
  rpc Upload(stream Count) returns (Receipt);
}
"""

SERVER = """
import sys
import grpc
from concurrent import futures
from grpc_reflection.v1alpha import reflection
import shop_pb2, shop_pb2_grpc

class Shop(shop_pb2_grpc.ShopServicer):
    def Buy(self, request, context):
        if request.WhichOneof("pay") is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "nobody pays")
        depth, box = 0, request.box
        while box.inside:
            depth, box = depth + 1, box.inside[0]
        text = f"{depth} deep, {box.label}, {sum(request.counts.values())}, {request.WhichOneof('pay')}"
        return shop_pb2.Receipt(text=text, number=request.number, order=request)

    def Tick(self, request, context):
        for number in range(request.to):
            yield shop_pb2.Receipt(text=f"tick {number}", number=number)

assert not any(name == "retinue" or name.startswith("retinue.") for name in sys.modules)
server = grpc.server(futures.ThreadPoolExecutor(4))
shop_pb2_grpc.add_ShopServicer_to_server(Shop(), server)
reflection.enable_server_reflection(("shop.Shop", reflection.SERVICE_NAME), server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""


@asynccontextmanager
async def foreign_shop(folder: Path) -> AsyncIterator[int]:
    """The port of a running `shop.Shop`; its code is generated in `folder`."""
    (folder / "shop.proto").write_text(PROTO)
    (folder / "serve.py").write_text(SERVER)
    if protoc.main(["protoc", f"-I{folder}", f"--python_out={folder}", f"--grpc_python_out={folder}", "shop.proto"]):
        raise ValueError("protoc refuses the proto: its own words are above")
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); import serve"),
        env=environ,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    try:
        async with asyncio.timeout(30):
            port = int(await process.stdout.readline())
        yield port
    finally:
        process.kill()
        await process.wait()
