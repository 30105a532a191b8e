"""The rules of requests to Anthropic Messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kit.dialect_rules import (
    NAME,
    must,
    must_be_base64,
    must_be_function,
    must_be_json,
    must_be_rooted,
    must_have,
    must_list,
    must_say,
)

_ID = re.compile(r"[A-Za-z0-9_-]+")
_OPTIONAL = {"system", "tools", "stream", "thinking", "tool_choice", "temperature"}
_CACHE = {"cache_control"}
_MOST_CACHED = 4


def check_anthropic(body: Mapping[str, Any]) -> None:
    """Raises AssertionError naming the rule that the body breaks."""
    must_be_json(body)
    must_have(body, {"model", "max_tokens", "messages"}, _OPTIONAL, "the body")
    must_say(body["model"], "the model")
    must(type(body["max_tokens"]) is int and body["max_tokens"] > 0, "max_tokens is a whole number above 0")
    must(isinstance(body.get("stream", False), bool), "stream is true or false")
    for block in must_list(body["system"], "system") if "system" in body else ():
        must_have(block, {"type", "text"}, _CACHE, "a system block")
        must_say(block["text"], "a system block")
    _check_tools(body)
    _check_roles(must_list(body["messages"], "messages"))
    known: set[str] = set()
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "user":
            _check_user(message["content"], waiting)
            waiting = []
        else:
            waiting = _check_assistant(message["content"], known)
    must(not waiting, "each tool_use has its tool_result in the next message", waiting)
    last = body["messages"][-1]["content"][-1]
    open_text = last.get("text", "") if body["messages"][-1]["role"] == "assistant" else ""
    must(open_text == open_text.rstrip(), "a last assistant text does not end with a blank", open_text)
    _check_cache(body)


def _check_tools(body: Mapping[str, Any]) -> None:
    names: set[str] = set()
    for tool in must_list(body["tools"], "tools") if "tools" in body else ():
        must_have(tool, {"name", "input_schema"}, {"description", *_CACHE}, "a tool")
        must_be_function(tool["name"], tool.get("description"), names)
        must_be_rooted(tool["input_schema"])


def _check_roles(messages: Sequence[Any]) -> None:
    for at, message in enumerate(messages):
        must_have(message, {"role", "content"}, set(), "a message")
        must(message["role"] == ("assistant" if at % 2 else "user"), "roles alternate, beginning with user", at)
        must_list(message["content"], "content")


def _check_user(content: Sequence[Any], waiting: Sequence[str]) -> None:
    results = [block for block in content if block.get("type") == "tool_result"]
    must(list(content[: len(results)]) == results, "results stand before anything else of their message")
    answered = [block.get("tool_use_id") for block in results]
    must(set(answered) <= set(waiting), "a tool_result answers a tool_use of the message before", answered)
    must(answered == list(waiting), "each tool_use has one tool_result in the next message, in order", answered)
    for block in content:
        match block.get("type"):
            case "tool_result":
                must_have(block, {"type", "tool_use_id"}, {"content", "is_error", *_CACHE}, "a tool_result")
                must(isinstance(block.get("content", ""), str), "a result is a string", block)
                must(isinstance(block.get("is_error", False), bool), "is_error is true or false", block)
            case "text":
                must_have(block, {"type", "text"}, _CACHE, "a text block")
                must_say(block["text"], "a text block")
            case "image":
                must_have(block, {"type", "source"}, _CACHE, "an image")
                _check_source(block["source"])
            case kind:
                must(False, "a user's block is a text, an image or a tool_result", kind)


def _check_source(source: Any) -> None:
    if source.get("type") == "url":
        must_have(source, {"type", "url"}, set(), "an image by address")
        must(str(source["url"]).startswith("http"), "an image has a URL", source)
    else:
        must_have(source, {"type", "media_type", "data"}, set(), "an image by data")
        must(source["type"] == "base64", "an image is base64 or a url", source)
        must_be_base64(source["data"], "an image's data")


def _check_assistant(content: Sequence[Any], known: set[str]) -> list[str]:
    """Checks an assistant's blocks and returns the ids of its calls."""
    kinds = [block.get("type") for block in content]
    thinking = ("thinking", "redacted_thinking")
    if "tool_use" in kinds and any(kind in thinking for kind in kinds):
        must(kinds[0] in thinking, "with thinking, a message that calls begins with it", kinds)
    uses = []
    for block in content:
        match block["type"]:
            case "text":
                must_have(block, {"type", "text"}, {"citations", *_CACHE}, "a text block")
                must_say(block["text"], "a text block")
            case "thinking":
                must_have(block, {"type", "thinking", "signature"}, set(), "a thinking block")
                must_say(block["signature"], "a thinking block's signature")
            case "redacted_thinking":
                must_have(block, {"type", "data"}, set(), "a redacted_thinking block")
            case "tool_use":
                uses.append(_check_use(block, known))
            case str(kind):
                own = kind in ("server_tool_use", "mcp_tool_use") or kind.endswith("_tool_result")
                must(own and kind != "tool_result", "an assistant's block is of a kind that an assistant has", kind)
    return uses


def _check_use(block: Any, known: set[str]) -> str:
    must_have(block, {"type", "id", "name", "input"}, _CACHE, "a tool_use")
    use_id: str = block["id"]
    must(isinstance(use_id, str) and _ID.fullmatch(use_id), "a tool_use's id is letters, digits, _ and -", use_id)
    must(use_id not in known, "ids of calls are unique in the conversation", use_id)
    known.add(use_id)
    must(isinstance(block["name"], str) and NAME.fullmatch(block["name"]), "a called name is legal", block["name"])
    must(isinstance(block["input"], dict), "a tool_use's input is an object", block["input"])
    return use_id


def _check_cache(body: Mapping[str, Any]) -> None:
    content = [block for message in body["messages"] for block in message["content"]]
    marked = [
        block for block in (*body.get("tools", ()), *body.get("system", ()), *content) if "cache_control" in block
    ]
    must(len(marked) <= _MOST_CACHED, f"at most {_MOST_CACHED} places are marked for the cache", len(marked))
    for block in marked:
        must(block["cache_control"].get("type") == "ephemeral", "a cache mark is ephemeral", block)
