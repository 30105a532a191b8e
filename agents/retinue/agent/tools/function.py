"""Plain functions as tools: the name, the docstring and the annotations are all that a model needs to know.

It does not check arguments: whoever runs a tool holds them against its schema first.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import enum
import inspect
import json
import math
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, time
from typing import Any, Generic, ParamSpec, TypeVar, overload

from google.protobuf import json_format
from google.protobuf.message import Message

from retinue.agent.tools import Handler, Invocation, Tool, ToolResult, ToolSpec, tool_name
from retinue.agent.tools.annotation import Shape, object_schema, shape_of, word
from retinue.service.errors import Invalid

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool(Tool, Generic[P, R]):
    """A tool that is a function: called as one, it is just that."""

    function: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *, name: str = "", description: str = "", idempotent: bool = False
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None, /, *, name: str = "", description: str = "", idempotent: bool = False
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Makes a function, sync or async, a tool that an agent takes in `tools=[...]`; it stays callable.

    Its name and docstring become the tool's, unless given; its parameters need annotations of types that JSON can
    carry, and one with a default may be left out. A string that it returns is the result as it stands, anything else
    becomes JSON. `idempotent`: running it twice does no harm, so that a crash may repeat it.

    A sync function runs in a thread. It cannot be stopped there: when its run is cancelled it ends by itself and its
    result is dropped. Write an async function where that matters.

    Raises TypeError, naming the parameter, for an annotation that is missing or not supported, and Invalid for a name
    that no model could call.
    """

    def make(function: Callable[P, R]) -> FunctionTool[P, R]:
        if not (inspect.isfunction(function) or inspect.ismethod(function)):
            raise TypeError(f"@tool is for functions, not for {function!r}")
        own = name or function.__name__
        if tool_name(own) != own:
            raise Invalid(
                f"tool {own!r}: use at most 64 of A-Z, a-z, 0-9, '_' and '-' in @tool(name=...)", field="name"
            )
        shapes, schema = _parameters(function, own)
        about = description or inspect.getdoc(function) or ""
        return FunctionTool(
            spec=ToolSpec(own, about, schema),
            handler=_handler(function, shapes),
            idempotent=idempotent,
            threaded=not inspect.iscoroutinefunction(function),
            function=function,
        )

    return make if function is None else make(function)


def _parameters(function: Callable[..., Any], name: str) -> tuple[dict[str, Shape], dict[str, Any]]:
    """The shape of each parameter, and the schema of them all."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"tool {name}: {error}; annotations must name types of its module") from None
    shapes: dict[str, Shape] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        where = f"tool {name}: parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{where} cannot be given by name")
        if parameter.name not in hints:
            raise TypeError(f"{where} has no annotation")
        try:
            shape = shape_of(hints[parameter.name])
        except TypeError as error:
            raise TypeError(f"{where}: {error}") from None
        shapes[parameter.name] = shape
        properties[parameter.name] = shape.schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif type(parameter.default) in (str, int, float, bool):
            properties[parameter.name] = shape.schema | {"default": parameter.default}
    return shapes, object_schema(properties, required)


def _handler(function: Callable[..., Any], shapes: Mapping[str, Shape]) -> Handler:
    threaded = not inspect.iscoroutinefunction(function)

    async def handle(invocation: Invocation) -> ToolResult:
        arguments = {key: shapes[key].read(value) for key, value in invocation.arguments.items()}
        value = await asyncio.to_thread(function, **arguments) if threaded else function(**arguments)
        if isinstance(value, Awaitable):
            value = await value
        return ToolResult(value if type(value) is str else to_json(value))

    return handle


def to_json(value: Any) -> str:
    """`value` as compact JSON text; TypeError, naming the type, when it has something that JSON has no form for."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    match value:
        case enum.Enum():
            return word(value)
        case None | bool() | int() | str():
            return value
        case float():
            # JSON has no NaN and no infinity: they become strings, as protobuf writes them.
            return value if math.isfinite(value) else json.dumps(value)
        case date() | time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case Message():
            return json_format.MessageToDict(value, preserving_proto_field_name=True)
        case Mapping():
            return {str(_plain(key)): _plain(item) for key, item in value.items()}
        case Sequence() | Set():
            return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"a tool cannot return a {type(value).__name__}: return text, or what JSON has a form for")
