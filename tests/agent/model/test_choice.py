"""Which model answers: the order of the choice, what each variable does, and what is an error at start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest

from retinue.agent.model import Model, ModelEnd, ModelMessage, ModelRequest
from retinue.agent.model.catalogue import ALIASES, PROVIDERS
from retinue.agent.model.choice import Chosen, _Choice, choose, ollama_url
from retinue.agent.model.offline import Offline
from retinue.agent.model.scripted import Scripted
from retinue.agent.testing import ModelServer
from retinue.agent.tools import ToolSpec
from retinue.service.chat import Message
from retinue.service.errors import Invalid, MeshError, ModelUnavailable

# Nothing listens on port 1, so no Ollama of this machine takes part.
NO_OLLAMA = {"OLLAMA_HOST": "127.0.0.1:1"}
OPENAI = {"OPENAI_API_KEY": "sk-openai"}


async def chosen(environ: dict[str, str], **asked: Any) -> Chosen:
    async with asyncio.timeout(5):
        return await choose(environ=NO_OLLAMA | environ, **asked)


@pytest.mark.parametrize(
    ("environ", "asked", "name"),
    [
        ({}, {}, "offline/rules"),
        (OPENAI, {}, "openai/gpt-5-mini"),
        (OPENAI | {"ANTHROPIC_API_KEY": "a"}, {}, "anthropic/claude-sonnet-4-5"),
        (OPENAI | {"ANTHROPIC_API_KEY": "a", "GEMINI_API_KEY": "g"}, {}, "gemini/gemini-flash-latest"),
        (OPENAI | {"ANTHROPIC_API_KEY": "", "GEMINI_API_KEY": ""}, {}, "openai/gpt-5-mini"),
        ({"ANTHROPIC_API_KEY": "a\n", "RETINUE_MODEL": "haiku"}, {}, "anthropic/claude-haiku-4-5"),
        (OPENAI | {"RETINUE_AI_PROVIDER": "openai"}, {}, "openai/gpt-5-mini"),
        (OPENAI | {"RETINUE_AI_PROVIDER": "offline"}, {}, "offline/rules"),
        (OPENAI | {"RETINUE_AI_PROVIDER": "offline", "RETINUE_MODEL": "openai/x"}, {}, "openai/x"),
        (OPENAI | {"RETINUE_MODEL": "openai/meta/llama-3"}, {}, "openai/meta/llama-3"),
        (OPENAI | {"RETINUE_MODEL": "openai"}, {}, "openai/gpt-5-mini"),
        (OPENAI | {"RETINUE_MODEL": "gpt"}, {}, "openai/gpt-5-mini"),
        (OPENAI | {"RETINUE_MODEL": "offline"}, {}, "offline/rules"),
        (OPENAI | {"RETINUE_MODEL": "openai/x"}, {"model": "offline"}, "offline/rules"),
        (OPENAI | {"RETINUE_MODEL": "offline"}, {"model": "y", "provider": "openai"}, "openai/y"),
        (OPENAI | {"RETINUE_MODEL": "offline"}, {"model": "openai/y", "provider": "openai"}, "openai/y"),
        (OPENAI | {"RETINUE_MODEL": "offline"}, {"provider": "openai"}, "openai/gpt-5-mini"),
        ({"RETINUE_MODEL": "openai/x", "RETINUE_AI_API_KEY": "k"}, {}, "openai/x"),
        ({}, {"model": "openai/x", "api_key": "k"}, "openai/x"),
        ({"RETINUE_MODEL": "ollama/qwen"}, {}, "ollama/qwen"),
        ({"RETINUE_MODEL": "openai/local", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, {}, "openai/local"),
    ],
)
async def test_the_nearest_word_decides(environ: dict[str, str], asked: dict[str, str], name: str) -> None:
    found = await chosen(environ, **asked)
    assert found.model.name == name
    assert found.why.startswith(f"{name} answers: ")
    assert "\n" not in found.why


@pytest.mark.parametrize(
    ("environ", "error", "said"),
    [
        ({"RETINUE_MODEL": "openai/x"}, Invalid, ["OPENAI_API_KEY"]),
        ({"RETINUE_AI_PROVIDER": "gemini"}, Invalid, ["GEMINI_API_KEY"]),
        ({"RETINUE_AI_PROVIDER": "opnai"}, Invalid, ["opnai", "openai", "ollama", "offline", "gemini"]),
        ({"RETINUE_MODEL": "nobody/x"}, Invalid, ["nobody", "openai", "ollama", "offline", "gemini"]),
        ({"RETINUE_MODEL": "gtp"}, Invalid, ["provider/name", "gpt"]),
        ({"RETINUE_MODEL": "offline/gpt"}, Invalid, ["offline/rules"]),
        ({"RETINUE_MODEL": "sonnet"}, Invalid, ["ANTHROPIC_API_KEY"]),
        ({"RETINUE_MODEL": "sonnet", "ANTHROPIC_API_KEY": "k\ney"}, Invalid, ["no header can carry"]),
        ({"RETINUE_AI_API_KEY": "k"}, Invalid, ["RETINUE_AI_PROVIDER"]),
        ({"RETINUE_MODEL": "openai/x", "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "nonsense"}, Invalid, ["nonsense"]),
        ({"RETINUE_AI_PROVIDER": "ollama"}, ModelUnavailable, ["127.0.0.1:1"]),
        ({"RETINUE_AI_PROVIDER": "ollama", "OLLAMA_HOST": "here:port"}, Invalid, ["OLLAMA_HOST"]),
    ],
)
async def test_what_cannot_be_had_is_an_error_that_says_what_to_do(
    environ: dict[str, str], error: type[MeshError], said: list[str]
) -> None:
    with pytest.raises(error) as caught:
        await chosen(environ)
    assert all(word in str(caught.value) for word in said), str(caught.value)


async def test_without_a_key_the_rules_answer_and_say_which_keys_there_are() -> None:
    found = await chosen({})
    assert isinstance(found.model, Offline)
    assert "no model key is set" in found.why
    assert all(key in found.why for key in ("OPENAI_API_KEY", "GEMINI_API_KEY", "ANTHROPIC_API_KEY"))


def test_every_alias_is_a_model_of_a_provider() -> None:
    assert {name.partition("/")[0] for name in ALIASES.values()} <= set(PROVIDERS)
    assert {"sonnet", "opus", "haiku", "gpt", "gemini"} <= set(ALIASES)


async def test_a_model_that_the_agent_brings_is_taken_as_it_is() -> None:
    model = Scripted("hi")
    assert (await chosen(OPENAI, model=model)).model is model


async def test_any_async_function_is_a_model() -> None:
    async def parrot(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        return messages[-1].text

    found = await chosen(OPENAI, model=parrot)
    assert found.model.name == "custom/parrot"
    assert await ask(found.model) == "hello"


async def ask(model: Model) -> str:
    request = ModelRequest(messages=(ModelMessage(message=Message(role="user", text="hello")),))
    async with AsyncExitStack() as stack, asyncio.timeout(5):
        if isinstance(model, AbstractAsyncContextManager):
            await stack.enter_async_context(model)
        *_, last = [event async for event in model.stream(request)]
    assert isinstance(last, ModelEnd)
    return last.text


@pytest.mark.parametrize(
    ("name", "variable", "path", "header", "value"),
    [
        ("openai", "OPENAI_BASE_URL", "/v1/chat/completions", "authorization", "Bearer mine"),
        ("gemini", "GEMINI_BASE_URL", "/v1beta/models/m:streamGenerateContent?alt=sse", "x-goog-api-key", "mine"),
        ("anthropic", "ANTHROPIC_BASE_URL", "/v1/messages", "x-api-key", "mine"),
        ("ollama", "OLLAMA_HOST", "/api/chat", "authorization", None),
    ],
)
async def test_each_provider_is_asked_where_its_variable_says(
    name: str, variable: str, path: str, header: str, value: str | None
) -> None:
    async with ModelServer(["fine"]) as server:
        base = server.base_url if name == "openai" else server.url
        environ = {variable: base, "RETINUE_AI_API_KEY": "mine", "OPENAI_API_KEY": "other"}
        assert await ask((await chosen(environ | {"RETINUE_MODEL": f"{name}/m"})).model) == "fine"
        (request,) = server.requests
    assert (request.path, request.headers.get(header)) == (path, value)


@pytest.mark.parametrize(
    ("installed", "name"),
    [
        (["qwen3:8b", "llama3.2:latest"], "ollama/llama3.2:latest"),
        (["qwen3:8b", "phi4"], "ollama/qwen3:8b"),
        ([], "offline/rules"),
    ],
)
async def test_an_ollama_that_runs_here_answers_with_a_model_that_it_has(installed: list[str], name: str) -> None:
    async with ModelServer(models=installed) as server:
        found = await chosen({"OLLAMA_HOST": server.url})
    assert found.model.name == name


def test_a_key_goes_to_the_provider_that_it_is_meant_for_and_to_nobody_else() -> None:
    def keys(environ: dict[str, str], own: str = "") -> dict[str, str]:
        asked = _Choice(environ, own, None)
        return {name: key for name in ("gemini", "anthropic", "openai") if (key := asked.key_of(PROVIDERS[name]))}

    both = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "RETINUE_AI_API_KEY": "general"}
    assert keys(both) == {"anthropic": "a", "openai": "o", "gemini": "general"}
    assert keys(both | {"RETINUE_AI_PROVIDER": "openai"}) == {"anthropic": "a", "openai": "general"}
    assert keys(both | {"RETINUE_MODEL": "haiku"}) == {"anthropic": "general", "openai": "o"}
    assert keys(both, own="mine") == dict.fromkeys(("gemini", "anthropic", "openai"), "mine")


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"model": "openai/openai/gpt-oss-20b"}, "openai/openai/gpt-oss-20b"),
        ({"model": "openai/gpt-oss-20b", "provider": "openai"}, "openai/gpt-oss-20b"),
        ({"model": "gpt", "provider": "openai"}, "openai/gpt-5-mini"),
    ],
)
async def test_a_name_is_split_at_its_first_slash_only(asked: dict[str, str], name: str) -> None:
    assert (await chosen(OPENAI, **asked)).model.name == name


@pytest.mark.parametrize(
    ("model", "says"),
    [("antropic/x", "did you mean anthropic"), ("claude-x", "such as anthropic/claude-x"), ("sonet", "mean sonnet")],
)
async def test_a_wrong_name_is_answered_with_what_may_be_meant(model: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        await chosen(OPENAI, model=model)


@pytest.mark.parametrize("url", ["http://h:99999/v1", "http://[::1/v1", "http://h:abc/v1", "http://u:p@h/v1"])
async def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(Invalid, match="base URL") as told:
        await chosen({"OPENAI_BASE_URL": url}, model="openai/x")
    assert "u:p" not in str(told.value)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        (":9", "http://127.0.0.1:9"),
        ("box", "http://box:11434"),
        ("http://box", "http://box:80"),
        ("https://box/ollama/", "https://box:443/ollama"),
        ("[::]:5", "http://[::1]:5"),
        ("::1", "http://[::1]:11434"),
        (' "box:9" ', "http://box:9"),
    ],
)
def test_ollama_host_is_read_as_ollama_reads_it(host: str, url: str) -> None:
    assert ollama_url(host) == url
