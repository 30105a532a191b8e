"""Models behind OpenAI chat completions, and behind every server that is compatible, by its base URL.

Where compatible servers differ is told by flags, not by copies. The time for a whole turn is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from retinue.agent.model import ModelRequest
from retinue.agent.model.decoder import Dialect
from retinue.agent.model.exchange import HttpModel, Options, endpoint
from retinue.agent.model.openai_reply import Completion
from retinue.agent.model.openai_request import Quirks, openai_body, quirks_of
from retinue.agent.model.sse import SseReader

BASE_URL = "https://api.openai.com/v1"


class OpenAI(HttpModel):
    """A model by its name on the server. `base_url` ends before /chat/completions; a query in it is kept.

    `quirks` are those of the host where None. The other options are HttpModel's.
    """

    dialect: ClassVar[Dialect] = Dialect(Completion, SseReader)

    def __init__(
        self,
        model: str,
        *,
        api_key: str = "",
        base_url: str = BASE_URL,
        provider: str = "openai",
        quirks: Quirks | None = None,
        **options: Unpack[Options],
    ) -> None:
        url = endpoint(base_url, "/chat/completions")
        self._model = model
        self._quirks = quirks_of(url.host) if quirks is None else quirks
        name, headers = f"{provider}/{model}", self._key_headers(api_key)
        listing = endpoint(base_url, "/models")
        super().__init__(name, url=url, listing=listing, headers=headers, secret=api_key, **options)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        return openai_body(request, model=self._model, name=self.name, quirks=self._quirks, streamed=self.streamed)

    def _key_headers(self, api_key: str) -> Mapping[str, str]:
        if not api_key:
            return {}
        return {"api-key": api_key} if self._quirks.api_key_header else {"authorization": f"Bearer {api_key}"}
