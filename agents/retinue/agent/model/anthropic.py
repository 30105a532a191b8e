"""Models behind Anthropic Messages, and behind every server that speaks it, by its base URL."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from retinue.agent.model import ModelRequest
from retinue.agent.model.anthropic_reply import AnthropicReply
from retinue.agent.model.anthropic_request import anthropic_body
from retinue.agent.model.decoder import Dialect
from retinue.agent.model.exchange import HttpModel, Options, endpoint
from retinue.agent.model.sse import SseReader

BASE_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"
# An answer must have a limit; the oldest models refuse one that they cannot reach.
MAX_TOKENS = 16_384
MAX_TOKENS_BEFORE_4 = 4_096


class Anthropic(HttpModel):
    """A model by its name on the server. `base_url` ends before /v1/messages; a query in it is kept.

    `max_tokens` is the most that one answer may have. `cached` lets the server cache the beginning of a conversation.
    The other options are HttpModel's.
    """

    dialect: ClassVar[Dialect] = Dialect(AnthropicReply, SseReader)

    def __init__(
        self,
        model: str,
        *,
        api_key: str = "",
        base_url: str = BASE_URL,
        provider: str = "anthropic",
        max_tokens: int | None = None,
        cached: bool = True,
        **options: Unpack[Options],
    ) -> None:
        self._model = model
        self._max_tokens = max_tokens or (MAX_TOKENS_BEFORE_4 if model.startswith("claude-3-") else MAX_TOKENS)
        self._cached = cached
        headers = {"anthropic-version": VERSION} | ({"x-api-key": api_key} if api_key else {})
        url = endpoint(base_url, "/v1/messages")
        listing = endpoint(base_url, "/v1/models").copy_merge_params({"limit": "1000"})
        name = f"{provider}/{model}"
        super().__init__(name, url=url, listing=listing, headers=headers, secret=api_key, **options)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        return anthropic_body(
            request,
            model=self._model,
            name=self.name,
            max_tokens=self._max_tokens,
            streamed=self.streamed,
            cached=self._cached,
        )
