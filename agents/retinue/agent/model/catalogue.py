"""The model providers that Retinue knows: where they are, what unlocks them, what they are asked for by default."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.agent.model.openai import BASE_URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One provider. `key` and `address` are the variables of its key and of its base URL ("": it has none).

    `path` leads from the base URL to the part before /chat/completions; None: the provider has no such endpoint,
    and its own dialect is not in this version. `model` is asked for when nobody names one.
    """

    name: str
    key: str = ""
    address: str = ""
    url: str = ""
    path: str | None = ""
    model: str = ""


# In the order of the smart choice.
PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(
            name="gemini",
            key="GEMINI_API_KEY",
            address="GEMINI_BASE_URL",
            url="https://generativelanguage.googleapis.com",
            path="/v1beta/openai",
            model="gemini-flash-latest",
        ),
        Provider(
            name="anthropic",
            key="ANTHROPIC_API_KEY",
            address="ANTHROPIC_BASE_URL",
            url="https://api.anthropic.com",
            path=None,
            model="claude-sonnet-4-5",
        ),
        Provider(name="openai", key="OPENAI_API_KEY", address="OPENAI_BASE_URL", url=BASE_URL, model="gpt-5-mini"),
        Provider(name="ollama", address="OLLAMA_HOST", url="127.0.0.1:11434", path="/v1", model="llama3.2"),
        Provider(name="offline", model="rules"),
    )
}

ALIASES = {
    "gpt": "openai/gpt-5-mini",
    "gemini": "gemini/gemini-flash-latest",
    "sonnet": "anthropic/claude-sonnet-4-5",
    "llama": "ollama/llama3.2",
    "offline": "offline/rules",
}
