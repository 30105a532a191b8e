"""The rules of the four model dialects, as strict checks of request bodies, and the four bodies of any history.

A check raises AssertionError and names the broken rule. It is stricter than any one server where servers differ, and
knows nothing of how the bodies were built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kit.dialect_anthropic import check_anthropic
from kit.dialect_gemini import check_gemini
from kit.dialect_ollama import check_ollama
from kit.dialect_openai import check_openai
from retinue.agent.model import ModelMessage, ModelRequest
from retinue.agent.model.anthropic_request import anthropic_body
from retinue.agent.model.gemini_request import gemini_body
from retinue.agent.model.ollama_request import ollama_body
from retinue.agent.model.openai_request import openai_body
from retinue.agent.tools import ToolSpec

__all__ = ["CHECKS", "check_all", "check_anthropic", "check_gemini", "check_ollama", "check_openai", "requests_of"]

CHECKS = {
    "openai": check_openai,
    "anthropic": check_anthropic,
    "gemini": check_gemini,
    "ollama": check_ollama,
}


def requests_of(
    messages: Sequence[ModelMessage],
    tools: Sequence[ToolSpec] = (),
    *,
    system: str = "You are tested.",
    names: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """The body that each dialect sends for that history, by dialect.

    `names` are full model names (provider/model) by dialect, for provider parts to be echoed; openai/m and so on.
    """
    request = ModelRequest(system=system, messages=tuple(messages), tools=tuple(tools))
    name = {dialect: f"{dialect}/m" for dialect in CHECKS} | dict(names or {})
    model = {dialect: full.partition("/")[2] for dialect, full in name.items()}
    return {
        "openai": openai_body(request, model=model["openai"], name=name["openai"]),
        "anthropic": anthropic_body(request, model=model["anthropic"], name=name["anthropic"], max_tokens=1024),
        "gemini": gemini_body(request, model=model["gemini"], name=name["gemini"]),
        "ollama": ollama_body(request, model=model["ollama"], name=name["ollama"], num_ctx=8192),
    }


def check_all(
    messages: Sequence[ModelMessage], tools: Sequence[ToolSpec] = (), *, names: Mapping[str, str] | None = None
) -> None:
    """Every dialect's request for that history passes that dialect's check."""
    for dialect, body in requests_of(messages, tools, names=names).items():
        CHECKS[dialect](body)
