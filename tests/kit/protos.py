"""Protos compiled in a test: the types of services that nothing here was generated for."""

from __future__ import annotations

from pathlib import Path

from google.api import field_behavior_pb2  # type: ignore[import-untyped]
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2] / "proto"


def compile_files(folder: Path, source: str, *, name: str = "probe.proto") -> FileDescriptorSet:
    """One proto file and all that it imports: retinue/v1, google/protobuf and google/api are at hand."""
    (folder / name).write_text(source)
    out = folder / f"{name}.binpb"
    places = (folder, ROOT, Path(protoc.__file__).parent / "_proto", Path(field_behavior_pb2.__file__).parents[2])
    paths = [f"-I{place}" for place in places]
    if protoc.main(["protoc", *paths, "--include_imports", f"--descriptor_set_out={out}", name]):
        raise ValueError("protoc refuses the proto: its own words are above")
    return FileDescriptorSet.FromString(out.read_bytes())


def compile_pool(folder: Path, source: str) -> DescriptorPool:
    """A pool of its own with the types of one proto file."""
    pool = DescriptorPool()
    for file in compile_files(folder, source).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool
