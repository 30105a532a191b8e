"""`retinue models`: what is configured, which would answer and why, and what the servers themselves say."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kit.commands import retinue

from retinue.agent.testing import ModelServer

KEYS = {
    "gemini": ("GEMINI_API_KEY", "GEMINI_BASE_URL"),
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
}


async def asked(folder: Path, extra: dict[str, str], *, code: int = 0) -> dict[str, Any]:
    done = await asyncio.to_thread(retinue, folder, "models", "--json", extra=extra)
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"providers": {one["name"]: one for one in found["providers"]}}


async def test_without_any_key_the_rules_answer_and_no_server_is_asked(tmp_path: Path) -> None:
    found = await asked(tmp_path, {})
    assert found["chosen"] == "offline/rules"
    assert [name for name, one in found["providers"].items() if one["configured"]] == ["ollama", "offline"]


@pytest.mark.parametrize("provider", KEYS)
async def test_with_one_key_its_provider_is_chosen_and_its_server_is_asked(tmp_path: Path, provider: str) -> None:
    key, address = KEYS[provider]
    async with ModelServer(models=["b", "a"], api_key="s3cret") as server:
        url = server.base_url if provider == "openai" else server.url
        found = await asked(tmp_path, {key: "s3cret", address: url})
    assert found["chosen"].startswith(f"{provider}/")
    assert found["providers"][provider]["models"] == ["a", "b"]
    assert "s3cret" not in json.dumps(found)


@pytest.mark.parametrize("provider", KEYS)
async def test_a_wrong_address_or_key_is_told_beside_the_provider(tmp_path: Path, provider: str) -> None:
    key, address = KEYS[provider]
    gone = await asked(tmp_path, {key: "s3cret", address: "http://127.0.0.1:1"})
    assert gone["chosen"].startswith(f"{provider}/")
    assert "127.0.0.1:1" in gone["providers"][provider]["error"] or gone["providers"][provider]["error"]
    async with ModelServer(api_key="another") as server:
        refused = await asked(tmp_path, {key: "s3cret", address: server.url})
    assert "401" in refused["providers"][provider]["error"]
    assert "s3cret" not in json.dumps([gone, refused])
    plain = await asyncio.to_thread(retinue, tmp_path, "models", extra={key: "s3cret", address: "ftp://x"})
    assert plain.returncode == 1
    assert "use http://host/path" in plain.stdout + plain.stderr


async def test_a_model_that_cannot_be_chosen_is_an_error_with_the_list_below(tmp_path: Path) -> None:
    found = await asked(tmp_path, {"RETINUE_MODEL": "opnai/gpt"}, code=1)
    assert found["chosen"] == ""
    assert "the providers are gemini" in found["why"]
