"""`retinue service`: which plain services are there, and what can be called on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from retinue.router.cli.agent import print_parts
from retinue.router.cli.options import Json, LogLevel
from retinue.router.cli.printing import out_json, out_table
from retinue.router.cli.reach import execute, reached

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

    from retinue.service.client.endpoints import Endpoint

app = typer.Typer(help="The services of the mesh.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_services(json_: Json = False, log_level: LogLevel = None) -> None:
    """List the services with their nodes."""
    execute(print_parts(("service",), json_))


@app.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A service's name, or an agent's.")],
    json_: Json = False,
    log_level: LogLevel = None,
) -> None:
    """Show the endpoints of a service: what `retinue call` takes."""
    execute(_describe(name, json_))


async def _describe(name: str, json_: bool) -> None:
    async with reached() as client:
        endpoints = [_endpoint(one) for one in (await client.endpoints(name)).all]
    if json_:
        out_json({"name": name, "endpoints": endpoints})
        return
    rows = [
        [
            one["endpoint"],
            ", ".join(f"{field['name']}: {field['type']}" for field in one["request"]),
            one["description"],
        ]
        for one in endpoints
    ]
    out_table(["ENDPOINT", "REQUEST", "DESCRIPTION"], rows)


def _endpoint(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "endpoint": endpoint.short,
        "path": endpoint.path,
        "description": endpoint.description,
        "streaming": endpoint.streaming,
        "idempotent": endpoint.idempotent,
        "request": _fields(endpoint.input),
        "response": _fields(endpoint.output),
    }


def _fields(message: Descriptor) -> list[dict[str, str]]:
    return [{"name": field.name, "type": _type(field)} for field in message.fields]


def _type(field: FieldDescriptor) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    named = field.message_type or field.enum_type
    scalar = FieldDescriptorProto.Type.Name(FieldDescriptorProto.Type.ValueType(field.type))
    kind = named.name if named is not None else scalar.removeprefix("TYPE_").lower()
    return f"repeated {kind}" if field.is_repeated else kind
