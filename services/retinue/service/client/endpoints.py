"""What a remote service offers: its endpoints by name, and JSON in and out of their messages.

It reads descriptors and maps data; it sends nothing. Text of an exception is shown and never decided on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import MethodOptions
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from retinue.service.client.fields import blame, misfit
from retinue.service.errors import CallFailed, Invalid, UnknownName
from retinue.service.names import did_you_mean
from retinue.service.text import sane_json
from retinue.v1 import options_pb2

log = logging.getLogger("retinue.client")

_REPEATABLE = (MethodOptions.NO_SIDE_EFFECTS, MethodOptions.IDEMPOTENT)


def read_options(method: MethodDescriptor) -> MethodOptions:
    """A method's options with those of retinue.v1, whichever pool the method is of."""
    return MethodOptions.FromString(method.GetOptions().SerializeToString())


def declared_repeatable(path: str, pool: DescriptorPool) -> bool:
    """Whether `pool` has the method at `path` and it is declared idempotent or free of side effects."""
    service, _, name = path.lstrip("/").partition("/")
    try:
        method = pool.FindServiceByName(service).methods_by_name[name]
    except KeyError:
        return False
    return read_options(method).idempotency_level in _REPEATABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of a service. `handler` is the service's last name; `streaming` is about the answers."""

    service: str
    handler: str
    method: str
    description: str
    streaming: bool
    client_streaming: bool
    idempotent: bool
    input: Descriptor
    output: Descriptor
    request_class: type[Message]
    response_class: type[Message]

    @property
    def path(self) -> str:
        """The path as gRPC calls it, such as /office.v1.Task/Create."""
        return f"/{self.service}/{self.method}"

    @property
    def short(self) -> str:
        """The name that people type, such as Task.Create."""
        return f"{self.handler}.{self.method}"

    @classmethod
    def of(cls, service: ServiceDescriptor, method: MethodDescriptor) -> Endpoint:
        """The endpoint that `method` is. Raises DecodeError when its options are broken."""
        options = read_options(method)
        return cls(
            service=service.full_name,
            handler=service.name,
            method=method.name,
            description=options.Extensions[options_pb2.description],
            streaming=method.server_streaming,
            client_streaming=method.client_streaming,
            idempotent=options.idempotency_level in _REPEATABLE,
            input=method.input_type,
            output=method.output_type,
            request_class=GetMessageClass(method.input_type),
            response_class=GetMessageClass(method.output_type),
        )

    def request(self, data: Mapping[str, Any] | str) -> Message:
        """The request that `data`, a JSON object or its text, stands for. Raises Invalid naming the field."""
        try:
            return self._read(_object(data))
        except RecursionError:
            raise Invalid(
                "the request is not JSON that can be read: it is nested too deeply", field="request"
            ) from None

    def _read(self, data: Mapping[str, Any]) -> Message:
        request = self.request_class()
        fields: dict[str, Any] = sane_json(dict(data))
        try:
            json_format.ParseDict(fields, request, descriptor_pool=_pool(self.input))
        except json_format.ParseError as error:
            raise blame(self.input, fields) or Invalid(f"{self.short}: {error}") from None
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            # What protobuf's own reader of JSON trips over: huge numbers, an Any that is none.
            raise misfit(self.input, fields) or Invalid(
                f"{self.short}: the request cannot be read: {type(error).__name__}: {error}"
            ) from None
        if wrong := misfit(self.input, fields):
            raise wrong
        if not request.IsInitialized():
            unset = [
                field.name for field in self.input.fields if field.is_required and not request.HasField(field.name)
            ]
            raise Invalid(f"{self.short}: a required field is not set: {', '.join(unset)}", field="".join(unset[:1]))
        return request

    def data(self, response: bytes) -> dict[str, Any]:
        """A response as JSON data, with proto field names and zero values. Raises CallFailed when it is none."""
        try:
            message = self.response_class.FromString(response)
            data: dict[str, Any] = json_format.MessageToDict(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=_pool(self.output),
            )
        except (DecodeError, json_format.SerializeToJsonError, TypeError) as error:
            text = f"{self.short} answered with something that cannot be shown as JSON: {error}"
            raise CallFailed(text, status=grpc.StatusCode.INTERNAL) from None
        return data


@dataclass(frozen=True, slots=True)
class Endpoints:
    """All endpoints of the service `name`."""

    name: str
    all: tuple[Endpoint, ...]

    @classmethod
    def of(cls, name: str, services: Iterable[ServiceDescriptor]) -> Endpoints:
        """The endpoints of these descriptors; one that cannot be read is left out, and logged."""
        return cls(name, tuple(endpoint for service in services for endpoint in _readable(service)))

    def find(self, endpoint: str) -> Endpoint:
        """The endpoint called so: Task.Create, office.v1.Task.Create, office.v1.Task/Create, /office.v1.Task/Create.

        Raises UnknownName with the nearest; Invalid, naming both, when two services fit. A leading slash makes the
        service's name a full one.
        """
        named = endpoint.lstrip("/")
        service, _, method = named.rpartition("/" if "/" in named else ".")
        full = endpoint.startswith("/")
        fits = sorted({e.service for e in self.all if _fits(e.service, service, full=full)})
        if len(fits) > 1:
            raise Invalid(f"{endpoint} on {self.name} may be of {' or '.join(fits)}: write it out", field="endpoint")
        for found in self.all:
            if found.service in fits and found.method == method:
                return found
        known = [e.short for e in self.all]
        raise UnknownName(f"{self.name} has no endpoint {endpoint!r}{did_you_mean(named, known)}", name=endpoint)


def _fits(service: str, named: str, *, full: bool) -> bool:
    return service == named or (not full and bool(named) and service.endswith(f".{named}"))


def _readable(service: ServiceDescriptor) -> Iterator[Endpoint]:
    for method in service.methods:
        try:
            yield Endpoint.of(service, method)
        except DecodeError as error:
            log.warning("%s is left out, its options cannot be read: %s", method.full_name, error)


def _pool(descriptor: Descriptor) -> DescriptorPool:
    return descriptor.file.pool


def _object(data: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """`data` as a JSON object."""
    if isinstance(data, str):
        try:
            data = json.loads(data, object_pairs_hook=_once)
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            raise Invalid(f"the request is not JSON: {error.msg} at {place}", field="request") from None
        except ValueError as error:
            raise Invalid(f"the request is not JSON that can be read: {error}", field="request") from None
    if not isinstance(data, Mapping):
        kind = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(data), "a number")
        raise Invalid(f"the request is {kind}: it must be a JSON object, such as {{}}", field="request")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these pairs. Python would keep the last of two alike, and lose the other."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Invalid(f"the request has {key!r} twice", field=key)
        found[key] = value
    return found
