"""The models of the four dialects by name, on one scripted server, and where on it each of them asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retinue.agent.model.anthropic import Anthropic
from retinue.agent.model.exchange import HttpModel
from retinue.agent.model.gemini import Gemini
from retinue.agent.model.ollama import Ollama
from retinue.agent.model.openai import OpenAI

_BUILD: dict[str, Callable[..., HttpModel]] = {
    "openai": lambda url, model, **options: OpenAI(model, base_url=f"{url}/v1", **options),
    "anthropic": lambda url, model, **options: Anthropic(model, base_url=url, **options),
    "gemini": lambda url, model, **options: Gemini(model, base_url=url, **options),
    "ollama": lambda url, model, **options: Ollama(model, base_url=url, **options),
}
PATHS = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
    "ollama": "/api/chat",
}
DIALECTS = tuple(PATHS)


def model_of(dialect: str, url: str, model: str = "m", **options: Any) -> HttpModel:
    """A model of that dialect on the scripted server whose root is `url`."""
    return _BUILD[dialect](url, model, **options)
