"""Chooses the model: the agent's own, RETINUE_MODEL, RETINUE_AI_PROVIDER with its default, else the smart choice.

What cannot be had is an error at start. A key that is there is never passed over for the offline rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from retinue.agent.model import Model
from retinue.agent.model.anthropic import Anthropic
from retinue.agent.model.catalogue import ALIASES, PROVIDERS, Provider, window_of
from retinue.agent.model.custom import Custom, CustomModel
from retinue.agent.model.exchange import HttpModel
from retinue.agent.model.gemini import Gemini
from retinue.agent.model.offline import Offline
from retinue.agent.model.ollama import Ollama
from retinue.agent.model.openai import OpenAI
from retinue.agent.model.transport import ModelClient
from retinue.service.errors import Invalid, ModelError, ModelUnavailable
from retinue.service.names import did_you_mean

# How long a machine's own Ollama may take to say that it is there (seconds).
PROBE_TIMEOUT = 0.5

_DIALECTS: Mapping[str, Callable[..., HttpModel]] = {
    "openai": OpenAI,
    "anthropic": Anthropic,
    "gemini": Gemini,
    "ollama": Ollama,
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model, and one line for people: which it is and why."""

    model: Model
    why: str


async def choose(
    model: Model | CustomModel | str | None = None,
    provider: str | None = None,
    api_key: str | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    client: ModelClient | None = None,
    window: int | None = None,
) -> Chosen:
    """The model for an agent; one behind a server is not entered yet, and shares `client` when one is given.

    `model` is a Model, any async function of messages and tools, or a name; `window` is how many tokens it takes, where
    the catalogue is not to say that. Invalid: no such provider, or its key is
    missing. ModelUnavailable: Ollama was named without a model and does not answer.
    """
    environ = os.environ if environ is None else environ
    if model is not None and not isinstance(model, str):
        brought = cast(Model, model) if hasattr(model, "stream") else Custom(model)
        return Chosen(brought, f"{brought.name} answers: the agent brings it")
    asked = _Choice(environ, (api_key or "").strip(), client, window)
    if model or provider:
        return await asked.named(model or "", provider or "", "the agent names it")
    if name := environ.get("RETINUE_MODEL", "").strip():
        return await asked.named(name, "", "RETINUE_MODEL names it")
    if name := environ.get("RETINUE_AI_PROVIDER", "").strip():
        return await asked.named("", name, "RETINUE_AI_PROVIDER names it")
    return await asked.smart()


async def names_at(provider: Provider, environ: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """The models that the provider's server has now, in its order; None where no key and no address of it is set.

    ModelError and Invalid say why it cannot be asked.
    """
    environ = os.environ if environ is None else environ
    asked = _Choice(environ, "", None, listing=True)
    if not asked.key_of(provider) and not environ.get(provider.address):
        return None
    model = asked.build(provider, provider.model)
    async with model:
        return await model.names()


@dataclass(frozen=True, slots=True)
class _Choice:
    environ: Mapping[str, str]
    key: str
    client: ModelClient | None
    window: int | None = None
    listing: bool = False

    async def named(self, model: str, provider: str, why: str) -> Chosen:
        """The model that somebody asked for."""
        full = ALIASES.get(model.lower(), model)
        provider = provider.lower()
        if not provider:
            provider, slash, model = full.partition("/")
            provider = provider.lower()
            if not slash and provider not in PROVIDERS:
                raise Invalid(f"model {provider!r}: use provider/name{_near(provider)}", field="model")
        elif full.startswith(f"{provider}/"):
            model = full.removeprefix(f"{provider}/")
        if provider not in PROVIDERS:
            known = f"{did_you_mean(provider, PROVIDERS)}; the providers are {', '.join(PROVIDERS)}"
            raise Invalid(f"no model provider {provider!r}{known}", field="provider")
        found = PROVIDERS[provider]
        if found.name == "ollama" and not model:
            model = await self._first_of_ollama(found)
        return Chosen(self._build(found, model or found.model), f"{provider}/{model or found.model} answers: {why}")

    async def smart(self) -> Chosen:
        """The first provider whose key is set, else a running Ollama, else the rules."""
        keyed = [provider for provider in PROVIDERS.values() if provider.key]
        for provider in keyed:
            if self.environ.get(provider.key, "").strip():
                return await self.named("", provider.name, f"{provider.key} is set")
        if self.key or self.environ.get("RETINUE_AI_API_KEY", "").strip():
            raise Invalid(
                "a model key is set but no provider: set RETINUE_AI_PROVIDER or RETINUE_MODEL", field="provider"
            )
        hints = []
        try:
            return await self.named("", "ollama", "no model key is set, and Ollama runs here")
        except ModelUnavailable as error:
            if self.environ.get("OLLAMA_HOST"):
                hints.append(error.message)
        keys = ", ".join(provider.key for provider in keyed)
        hints += [
            f"{one.address} is set, so name its model: RETINUE_MODEL={one.name}/..."
            for one in keyed
            if self.environ.get(one.address, "").strip()
        ]
        why = "; ".join([f"set {keys}, or start Ollama", *hints])
        return Chosen(Offline(), f"offline/rules answers: no model key is set ({why})")

    def _build(self, provider: Provider, model: str) -> Model:
        if provider.name == "offline":
            if model != provider.model:
                raise Invalid(f"no model offline/{model}: there is offline/{provider.model}", field="model")
            return Offline()
        return self.build(provider, model)

    def key_of(self, provider: Provider) -> str:
        """The key for a provider: the agent's own, RETINUE_AI_API_KEY where that is meant for it, or the provider's.

        It is meant for the provider that the environment names, and nobody else gets it; where the environment names
        none, it stands in for a key that is missing of the provider that an agent names. A mere listing names nobody.
        """
        if not provider.key:
            return ""
        own = self.environ.get(provider.key, "").strip()
        named = self.environ.get("RETINUE_MODEL", "").strip()
        owner = (
            ALIASES.get(named.lower(), named).partition("/")[0].lower()
            or self.environ.get("RETINUE_AI_PROVIDER", "").strip()
        )
        general = self.environ.get("RETINUE_AI_API_KEY", "").strip()
        meant = owner == provider.name or not (owner or own or self.listing)
        return self.key or (general if meant else "") or own

    def build(self, provider: Provider, model: str) -> HttpModel:
        """The model of a provider that has a server."""
        key = self.key_of(provider)
        # A server of one's own may need no key, and says so itself when it does.
        if provider.key and not key and not self.environ.get(provider.address):
            raise Invalid(f"{provider.name}/{model} needs a key: set {provider.key}", field="api_key")
        build = _DIALECTS[provider.dialect]
        return build(
            model,
            api_key=key,
            base_url=self._base_url(provider),
            provider=provider.name,
            client=self.client,
            window=self.window or window_of(model),
        )

    def _base_url(self, provider: Provider) -> str:
        base = self.environ.get(provider.address, "").strip() or provider.url
        return (ollama_url(base) if provider.name == "ollama" else base.rstrip("/")) + provider.path

    async def _first_of_ollama(self, provider: Provider) -> str:
        """A model that Ollama has, the catalogue's where it is there; Ollama lists the newest first."""
        base = self._base_url(provider)
        try:
            async with Ollama(provider.model, base_url=base) as server:
                names = await server.names(within=PROBE_TIMEOUT)
        except ModelError as error:
            text = f"Ollama does not answer at {base} ({error.facts.get('kind', '')})"
            raise ModelUnavailable(text, kind="unreachable") from error
        if not names:
            raise ModelUnavailable(f"Ollama at {base} has no model: ollama pull {provider.model}", kind="not_found")
        return next((name for name in names if name.partition(":")[0] == provider.model), names[0])


def _near(model: str) -> str:
    """What may have been meant: a provider's or alias' name that is near, or the provider that has such models."""
    family = model.partition("-")[0]
    of = next((one.name for one in PROVIDERS.values() if one.model.partition("-")[0] == family), "")
    return f", such as {of}/{model}" if of else did_you_mean(model, [*PROVIDERS, *ALIASES])


def ollama_url(host: str) -> str:
    """The URL of OLLAMA_HOST: scheme and port may be missing, quotes are dropped, 0.0.0.0 means this machine."""
    said = host.strip().strip("\"'").strip()
    with_scheme = "://" in said
    if said.count(":") > 1 and not with_scheme and "[" not in said:
        said = f"[{said}]"
    try:
        parts = urlsplit(said if with_scheme else f"http://{said}")
        port = parts.port or ({"http": 80, "https": 443}.get(parts.scheme, 11434) if with_scheme else 11434)
    except ValueError as error:
        raise Invalid(f"OLLAMA_HOST {host!r}: {error}", field="OLLAMA_HOST") from error
    if parts.username or parts.password:
        raise Invalid("OLLAMA_HOST takes no user and password", field="OLLAMA_HOST")
    name = parts.hostname or "127.0.0.1"
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)
    return f"{parts.scheme}://{f'[{name}]' if ':' in name else name}:{port}{parts.path.rstrip('/')}"
