"""What a model server's refusals mean: HTTP answers, error objects inside a stream, and broken connections.

Each becomes a ModelError whose fact `kind` says precisely what it was. Types, codes and statuses decide; the text
does only where servers have no code for it: a conversation that is too long, an account that is empty.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from retinue.service.errors import ModelAuth, ModelContext, ModelError, ModelQuota, ModelRate, ModelUnavailable, cut
from retinue.service.text import sane

# kind -> the error's type, and what its message says first.
_KINDS: dict[str, tuple[type[ModelError], str]] = {
    "auth": (ModelAuth, "the server refuses the key"),
    "quota": (ModelQuota, "the account has nothing left"),
    "rate_limited": (ModelRate, "too many requests for now"),
    "context_overflow": (ModelContext, "the conversation is too long for this model"),
    "overloaded": (ModelUnavailable, "the server is overloaded"),
    "server_error": (ModelUnavailable, "the server failed"),
    "timeout": (ModelUnavailable, "the server took too long"),
    "unreachable": (ModelUnavailable, "the server cannot be reached"),
    "truncated": (ModelUnavailable, "the answer broke off"),
    "tool_use_failed": (ModelUnavailable, "the model wrote a tool call that its own server could not read"),
    "malformed_tool_call": (ModelUnavailable, "the model wrote a tool call that nobody can read"),
    "content_filter": (ModelError, "the server's filter refuses the request"),
    "not_found": (ModelError, "no such model, or no such address"),
    "invalid_request": (ModelError, "the server refuses the request"),
    "too_large": (ModelError, "the answer is over the limit"),
    "busy": (ModelError, "too many model calls at once in this process"),
}

# The servers' own words, from `code` and `type` of an error object.
_CODES = {
    "tool_use_failed": "tool_use_failed",
    "content_filter": "content_filter",
    "insufficient_quota": "quota",
    "credit_balance_exhausted": "quota",
    "organization_usage_limit_exceeded": "quota",
    "context_length_exceeded": "context_overflow",
    "exceed_context_size_error": "context_overflow",
    "rate_limit_exceeded": "rate_limited",
    "slow_down": "rate_limited",
    "server_is_overloaded": "overloaded",
    "overloaded_error": "overloaded",
    "invalid_api_key": "auth",
    "API_KEY_INVALID": "auth",
    "model_not_found": "not_found",
    "server_error": "server_error",
}
# Words that say less than a status does, for errors inside a stream, which have none.
_TYPES = {
    "invalid_request_error": "invalid_request",
    "authentication_error": "auth",
    "permission_error": "auth",
    "not_found_error": "not_found",
    "request_too_large": "invalid_request",
    "rate_limit_error": "rate_limited",
    "timeout_error": "timeout",
    "INVALID_ARGUMENT": "invalid_request",
    "RESOURCE_EXHAUSTED": "rate_limited",
    "UNAVAILABLE": "overloaded",
    "DEADLINE_EXCEEDED": "timeout",
    "UNAUTHENTICATED": "auth",
    "PERMISSION_DENIED": "auth",
    "NOT_FOUND": "not_found",
}
_STATUSES = {
    401: "auth",
    402: "quota",
    403: "auth",
    404: "not_found",
    408: "timeout",
    409: "overloaded",  # OpenAI: a lock that another request holds
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
# No code is common to servers for this; the list follows pi-mono's overflow table.
_OVERFLOW = re.compile(
    r"prompt is too long|input is too long for|exceeds the context window|max(?:imum)? (?:context|prompt) length"
    r"|exceeds the available context size|exceed context limit|context window exceeds limit|exceeded model token limit"
    r"|input token count.*exceeds the maximum|(?:greater|longer) than the (?:model's )?context length"
    r"|reduce the length of the messages",
    re.IGNORECASE | re.DOTALL,
)
# Anthropic has the code of a bad request for it.
_EMPTY = re.compile("credit balance is too low", re.IGNORECASE)
# A duration as Go writes it.
_STEP = r"(\d+(?:\.\d+)?)(ms|h|m|s)"
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Gemini, where it sends no RetryInfo.
_RETRY_IN = re.compile(rf"Please retry in ((?:{_STEP})+)")
_MINUTE = 60.0
# No wait is longer: some servers write anything.
_LONGEST_WAIT_S = 86400.0
TEXT_BYTES = 500


@dataclass(frozen=True, slots=True)
class Failures:
    """Builds the errors of one model: its name is in each, its key in none."""

    model: str
    secret: str = ""

    def of_kind(self, kind: str, text: str = "", *, retry_after: float | None = None, **facts: str) -> ModelError:
        """The error of that kind, saying `text` after what the kind means."""
        cls, meaning = _KINDS[kind]
        retry_after = None if retry_after is None else min(retry_after, _LONGEST_WAIT_S)
        text = cut(self._masked(sane(text)), TEXT_BYTES)
        facts = {key: self._masked(sane(value)) for key, value in facts.items() if value}
        message = f"{self.model}: {meaning}: {text}" if text else f"{self.model}: {meaning}"
        return cls(message, retry_after=retry_after, kind=kind, **facts)

    def _masked(self, text: str) -> str:
        return text.replace(self.secret, "***") if self.secret else text

    def of_answer(
        self, status: int, headers: Mapping[str, str], body: bytes, *, now: float | None = None
    ) -> ModelError:
        """What an answer with an error status means. `now` is in Unix seconds; header names are in lower case."""
        said = _Said.read(_json_or_none(body), status)
        if not said.text and b"<html" not in body[:500].lower():
            said.text = body.decode("utf-8", "replace").strip()
        wait = retry_after(headers, time.time() if now is None else now)
        return self.of_kind(
            said.kind(),
            f"{said.text} (HTTP {status})".strip(),
            retry_after=said.retry_after if wait is None else wait,
            http_status=str(status),
            code=said.code,
            should_retry=headers.get("x-should-retry", ""),
            server_request_id=headers.get("x-request-id") or headers.get("request-id") or said.request_id,
        )

    def of_object(self, value: Any, **facts: str) -> ModelError:
        """What an error object inside a stream or a successful answer means."""
        said = _Said.read(value, None)
        facts |= {"code": said.code, "server_request_id": said.request_id}
        return self.of_kind(said.kind(), said.text, retry_after=said.retry_after, **facts)

    def of_text(self, text: str) -> ModelError:
        """What the data of an error event means: an error object, or words."""
        return self.of_object(_json_or_none(text) or text)

    def of_transport(self, error: httpx.TransportError, *, begun: bool) -> ModelError:
        """What a broken connection means; `begun`: the answer had started."""
        text = str(error) or type(error).__name__
        if isinstance(error, httpx.PoolTimeout):
            return self.of_kind("busy", text)
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return self.of_kind("timeout", text)
        return self.of_kind("truncated" if begun else "unreachable", text)


@dataclass(slots=True)
class _Said:
    """What can be read out of any server's error body."""

    text: str = ""
    words: tuple[str, ...] = ()
    status: int | None = None
    retry_after: float | None = None
    request_id: str = ""

    @classmethod
    def read(cls, value: Any, status: int | None) -> _Said:
        if isinstance(value, list) and value:  # Gemini: a list of one on streaming calls
            value = value[0]
        if not isinstance(value, dict):
            return cls(text=value if isinstance(value, str) else "", status=status)
        inner = error = value.get("error")
        if not isinstance(inner, dict):
            inner = value  # Mistral, old vLLM: flat
        told = error if isinstance(error, str) else inner.get("message") or inner.get("detail") or value.get("message")
        said = cls(text=_text(told))
        said.request_id = _text(value.get("request_id"))
        words = [inner.get("code"), inner.get("type"), inner.get("status")]
        said.status = status or next((number for word in words if (number := _http_status(word))), None)
        details = _objects(inner.get("details"))  # google.rpc
        quotas = [str(each.get("quotaId")) for detail in details for each in _objects(detail.get("violations"))]
        words += [detail.get("reason") for detail in details]
        # Gemini names a limit that lasts until tomorrow only in its quota's id.
        words += ["insufficient_quota" for quota in quotas if "PerDay" in quota or "Daily" in quota]
        said.words = tuple(str(word) for word in words if word)
        waits = [_seconds(detail.get("retryDelay")) for detail in details]
        said.retry_after = next((wait for wait in waits if wait is not None), None)
        if said.retry_after is None and (found := _RETRY_IN.search(said.text)):
            said.retry_after = _seconds(found[1])
        if said.retry_after is None and any("PerMinute" in quota for quota in quotas):
            said.retry_after = _MINUTE
        return said

    @property
    def code(self) -> str:
        """The server's own word for it, rather than a status that it repeats."""
        return next((word for word in self.words if not _http_status(word)), "".join(self.words[:1]))

    def kind(self) -> str:
        for word in self.words:
            if word in _CODES:
                return _CODES[word]
            if word.startswith("billing_") or word.endswith("_spend_limit_exceeded"):
                return "quota"
        # Statuses of keys and money go before texts, and a rate limit is never an overflow.
        if self.status in (401, 402, 403, 429):
            return _STATUSES[self.status]
        if _OVERFLOW.search(self.text):
            return "context_overflow"
        if _EMPTY.search(self.text):
            return "quota"
        if self.status is None:
            return next((_TYPES[word] for word in self.words if word in _TYPES), "server_error")
        return _STATUSES.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request")


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks to wait (fractions, or an HTTP date, are allowed), or None."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        value = headers.get(name, "")
        try:
            seconds = float(value) / unit
        except ValueError:
            seconds = _until(value, now)
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    return None


def _until(date: str, now: float) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - now
    except ValueError:
        return math.nan


def _json_or_none(body: bytes | str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _http_status(word: Any) -> int | None:
    number = word if isinstance(word, int) else int(word) if isinstance(word, str) and word.isdecimal() else 0
    return number if 400 <= number <= 599 else None


def _seconds(value: Any) -> float | None:
    if not isinstance(value, str) or not re.fullmatch(f"({_STEP})+", value):
        return None
    return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_STEP, value))
