"""Models behind Ollama's own API, in lines of JSON."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from retinue.agent.model import ModelRequest
from retinue.agent.model.decoder import Dialect
from retinue.agent.model.exchange import HttpModel, Options, endpoint
from retinue.agent.model.ndjson import NdjsonReader
from retinue.agent.model.ollama_reply import OllamaReply
from retinue.agent.model.ollama_request import ollama_body

BASE_URL = "http://127.0.0.1:11434"
# Room for an agent's tools and a few turns; Ollama's own default is a fraction of it.
NUM_CTX = 16_384


class Ollama(HttpModel):
    """A model by its name on the server. `base_url` ends before /api/chat; `window`, where not given, is NUM_CTX.

    The options are HttpModel's.
    """

    dialect: ClassVar[Dialect] = Dialect(OllamaReply, NdjsonReader)

    def __init__(
        self,
        model: str,
        *,
        api_key: str = "",
        base_url: str = BASE_URL,
        provider: str = "ollama",
        **options: Unpack[Options],
    ) -> None:
        self._model = model
        url = endpoint(base_url, "/api/chat")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        listing, name = endpoint(base_url, "/api/tags"), f"{provider}/{model}"
        self._num_ctx = options.get("window") or NUM_CTX
        options["window"] = self._num_ctx
        super().__init__(name, url=url, listing=listing, headers=headers, secret=api_key, **options)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        return ollama_body(request, model=self._model, name=self.name, num_ctx=self._num_ctx, streamed=self.streamed)
