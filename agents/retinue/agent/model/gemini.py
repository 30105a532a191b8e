"""Models behind Gemini's generateContent, streamed as server-sent events or whole."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack
from urllib.parse import quote

from retinue.agent.model import ModelRequest
from retinue.agent.model.decoder import Dialect
from retinue.agent.model.exchange import HttpModel, Options, endpoint
from retinue.agent.model.gemini_reply import GeminiReply
from retinue.agent.model.gemini_request import gemini_body
from retinue.agent.model.sse import SseReader

BASE_URL = "https://generativelanguage.googleapis.com"


class Gemini(HttpModel):
    """A model by its name on the server. `base_url` ends before /v1beta; a query in it is kept.

    The key goes in a header, never in the address. The other options are HttpModel's.
    """

    dialect: ClassVar[Dialect] = Dialect(GeminiReply, SseReader)

    def __init__(
        self,
        model: str,
        *,
        api_key: str = "",
        base_url: str = BASE_URL,
        provider: str = "gemini",
        **options: Unpack[Options],
    ) -> None:
        self._model = model.removeprefix("models/")
        streamed = options.get("streamed", True)
        verb = "streamGenerateContent" if streamed else "generateContent"
        url = endpoint(base_url, f"/v1beta/models/{quote(self._model, safe='')}:{verb}")
        url = url.copy_merge_params({"alt": "sse"}) if streamed else url
        headers = {"x-goog-api-key": api_key} if api_key else {}
        listing = endpoint(base_url, "/v1beta/models").copy_merge_params({"pageSize": "1000"})
        name = f"{provider}/{model}"
        super().__init__(name, url=url, listing=listing, headers=headers, secret=api_key, **options)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        return gemini_body(request, model=self._model, name=self.name)
