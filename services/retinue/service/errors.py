"""The one error tree of the mesh, raised by whoever fails and caught by whoever called, over RPC or not.

It maps to a gRPC status with a google.rpc.ErrorInfo and back, by fields alone; it never reads an error text.

MeshError
├── UnknownName            no such agent, service or endpoint
├── Unavailable            a part of the mesh cannot be reached; asking again may help
│   ├── NoNode             known, but no node answers
│   ├── Draining           the node is going away
│   ├── WrongNode          another node answers at this address
│   ├── RegistryUnavailable
│   └── StoreUnavailable
├── Invalid                the request is not one; `field` names the place
├── Unsupported            this server does not do that
├── AlreadyExists          something of that name is there
├── CycleRefused, DepthRefused, BudgetSpent, RequestConflict, SessionBusy
├── Unauthenticated, Forbidden
├── DeadlinePassed, Cancelled
├── ModelError             what a model server said no to
│   └── ModelAuth, ModelQuota, ModelRate, ModelUnavailable, ModelContext
├── CallFailed             a foreign service's own status
└── InternalError          a fault of this code
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from retinue.service.text import sane
from retinue.service.usage import Usage

DOMAIN = "retinue"
DETAILS_KEY = "grpc-status-details-bin"
# A status message travels in a header: a long one becomes RESOURCE_EXHAUSTED and loses its reason.
MESSAGE_BYTES = 1024


class MeshError(Exception):
    """Something the mesh refused or failed to do.

    `message` says what happened and what to do; `retry_after` (seconds) is set where waiting helps;
    `facts` are further fields of the ErrorInfo, such as the field that was wrong; `usage` is what a run had used
    when it failed.
    """

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, retry_after: float | None = None, **facts: str) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.facts = facts
        self.usage: Usage | None = None
        # Whether a server of the mesh said this itself; a connection that broke says nothing.
        self.answered = False

    def __str__(self) -> str:
        return self.message


class InternalError(MeshError):
    """A fault of the code that answered, not of the one that asked."""


class UnknownName(MeshError):
    """There is no agent, service or endpoint of that name; the message names the nearest."""

    status = grpc.StatusCode.NOT_FOUND
    reason = "UNKNOWN_NAME"


class Unavailable(MeshError):
    """A part of the mesh cannot be reached just now."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class NoNode(Unavailable):
    """The name is known, but no node of it answers."""

    reason = "NO_NODE"


class Draining(Unavailable):
    """The node finishes what runs and takes nothing new."""

    reason = "DRAINING"


class WrongNode(Unavailable):
    """The node at this address goes by another name."""

    reason = "WRONG_NODE"


class RegistryUnavailable(Unavailable):
    """The registry cannot be reached and nothing is cached."""

    reason = "REGISTRY"


class StoreUnavailable(Unavailable):
    """The store cannot be reached: nothing was forgotten, and nothing was written."""

    reason = "STORE"


class Invalid(MeshError):
    """The request is malformed; the fact `field` names the place."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID"

    def __init__(self, message: str, *, field: str = "", **facts: str) -> None:
        super().__init__(message, retry_after=None, **({"field": field} if field else {}), **facts)


class Unsupported(MeshError):
    """This server does not do that."""

    status = grpc.StatusCode.UNIMPLEMENTED
    reason = "UNIMPLEMENTED"


class AlreadyExists(MeshError):
    """Something of that name is there already, and nothing was changed."""

    status = grpc.StatusCode.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class CycleRefused(MeshError):
    """The agent is already at work further up in this very tree of calls."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    reason = "CYCLE"


class DepthRefused(MeshError):
    """The chain of delegates is as long as its root allows."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    reason = "DEPTH"


class BudgetSpent(MeshError):
    """The tree had used up its limits before this run began."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "BUDGET"


class RequestConflict(MeshError):
    """The request id was used before with another body."""

    status = grpc.StatusCode.ALREADY_EXISTS
    reason = "REQUEST_ID"


class SessionBusy(MeshError):
    """The session's queue of turns is full, or another node is writing it."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "SESSION_BUSY"


class Unauthenticated(MeshError):
    """No credentials, or bad ones."""

    status = grpc.StatusCode.UNAUTHENTICATED
    reason = "AUTH"


class Forbidden(MeshError):
    """The credentials are good and do not allow this."""

    status = grpc.StatusCode.PERMISSION_DENIED
    reason = "AUTH"


class DeadlinePassed(MeshError):
    """The time that the caller gave is over."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE"


class Cancelled(MeshError):
    """Whoever asked does not want it any more."""

    status = grpc.StatusCode.CANCELLED
    reason = "CANCELLED"


class ModelError(MeshError):
    """A model server failed the turn. `retryable` says whether asking again may help."""

    reason = "MODEL"
    retryable: ClassVar[bool] = False


class ModelAuth(ModelError):
    """The key is missing or wrong."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MODEL_AUTH"


class ModelQuota(ModelError):
    """The account has nothing left; waiting does not help."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "MODEL_QUOTA"


class ModelRate(ModelError):
    """Too many requests for now."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "MODEL_RATE"
    retryable = True


class ModelUnavailable(ModelError):
    """The model server is down, overloaded, out of reach, or broke off."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "MODEL_UNAVAILABLE"
    retryable = True


class ModelContext(ModelError):
    """The conversation is longer than the model's window."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MODEL_CONTEXT"


class CallFailed(MeshError):
    """A service answered with a status of its own; `status` and `message` are the service's."""

    def __init__(self, message: str, *, status: grpc.StatusCode, retry_after: float | None = None, **facts: str):
        super().__init__(message, retry_after=retry_after, **facts)
        self.status = status


def _descendants(cls: type[MeshError]) -> Iterator[type[MeshError]]:
    for child in cls.__subclasses__():
        yield child
        yield from _descendants(child)


_BY_WIRE: dict[tuple[grpc.StatusCode, str], type[MeshError]] = {
    (cls.status, cls.reason): cls for cls in _descendants(MeshError) if cls is not CallFailed
}
_STATUS_BY_NAME: dict[str, grpc.StatusCode] = {code.name: code for code in grpc.StatusCode}
_STATUS_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def build(
    status: grpc.StatusCode, reason: str, message: str, *, retry_after: float | None = None, **facts: str
) -> MeshError:
    """The error that these wire fields stand for; one that the tree does not know is a CallFailed."""
    cls = _BY_WIRE.get((status, reason))
    if cls is None:
        return CallFailed(message, status=status, retry_after=retry_after, **facts)
    error = cls(message)
    error.retry_after, error.facts = retry_after, facts
    return error


def status_named(name: str) -> grpc.StatusCode:
    """The status code of that name; UNKNOWN for a name that gRPC does not have."""
    return _STATUS_BY_NAME.get(name, grpc.StatusCode.UNKNOWN)


def cut(text: str, limit: int = MESSAGE_BYTES) -> str:
    """`text`, made sane, shortened to `limit` bytes of UTF-8 and marked with an ellipsis when something is gone."""
    text = sane(text)
    raw = text.encode()
    if len(raw) <= limit:
        return text
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"


def to_metadata(error: MeshError) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata that carries an error's ErrorInfo and RetryInfo."""
    status = status_pb2.Status(code=error.status.value[0], message=cut(error.message))
    facts = {key: cut(value, 256) for key, value in error.facts.items()}
    status.details.add().Pack(error_details_pb2.ErrorInfo(domain=DOMAIN, reason=error.reason, metadata=facts))
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return ((DETAILS_KEY, status.SerializeToString()),)


def from_rpc(error: grpc.aio.AioRpcError) -> MeshError:
    """What an RPC's failure means: the callee's own error, or a CallFailed with its status.

    A deadline or a cancellation brings no details and is told by its code.
    """
    message = error.details() or ""
    for detail in _details(error.trailing_metadata() or ()):
        if detail.reason is not None:
            built = build(error.code(), detail.reason, message, retry_after=detail.retry_after)
            built.facts = detail.facts
            built.answered = True
            return built
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlinePassed(message or "the deadline passed")
    if error.code() is grpc.StatusCode.CANCELLED:
        return Cancelled(message or "the call was cancelled")
    return CallFailed(message, status=error.code())


class _Details:
    """The two details that we read out of a google.rpc.Status."""

    def __init__(self, status: status_pb2.Status) -> None:
        self.reason: str | None = None
        self.retry_after: float | None = None
        self.facts: dict[str, str] = {}
        for packed in status.details:
            info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            if packed.Unpack(info) and info.domain == DOMAIN:
                self.reason, self.facts = info.reason, dict(info.metadata)
            elif packed.Unpack(retry):
                self.retry_after = retry.retry_delay.ToNanoseconds() / 1e9


def _details(trailers: Iterable[tuple[str, Any]]) -> Iterator[_Details]:
    for key, value in trailers:
        if key == DETAILS_KEY:
            try:
                status = status_pb2.Status.FromString(value)
            except DecodeError:
                continue  # a foreign server's own idea of details: its status says enough
            yield _Details(status)
