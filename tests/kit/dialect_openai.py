"""The rules of requests to OpenAI chat completions and compatible servers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kit.dialect_rules import (
    NAME,
    must,
    must_be_function,
    must_be_json,
    must_be_object_text,
    must_be_rooted,
    must_have,
    must_list,
    must_say,
)

_OPTIONAL = {"stream", "stream_options", "tools", "max_tokens", "max_completion_tokens", "temperature"}
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_ECHOED = {"reasoning_content", "reasoning_details", "reasoning"}


def check_openai(body: Mapping[str, Any], *, short_ids: bool = False) -> None:
    """Raises AssertionError naming the rule that the body breaks. `short_ids`: those of Mistral."""
    must_be_json(body)
    must_have(body, {"model", "messages"}, _OPTIONAL, "the body")
    must_say(body["model"], "the model")
    must(isinstance(body.get("stream", False), bool), "stream is true or false")
    must("stream_options" not in body or body.get("stream"), "stream_options come with a stream only")
    _check_tools(body)
    messages = must_list(body["messages"], "messages")
    if messages[0].get("role") == "system":
        must_have(messages[0], {"role", "content"}, set(), "a system message")
        must_say(messages[0]["content"], "the system message")
        messages = messages[1:]
    must(messages and messages[0].get("role") == "user", "the conversation begins with a user message")
    _check_conversation(messages, short_ids)


def _check_tools(body: Mapping[str, Any]) -> None:
    names: set[str] = set()
    for tool in must_list(body["tools"], "tools") if "tools" in body else ():
        must_have(tool, {"type", "function"}, set(), "a tool")
        must(tool["type"] == "function", "a tool is a function")
        function = tool["function"]
        must_have(function, {"name", "parameters"}, {"description", "strict"}, "a function")
        must_be_function(function["name"], function.get("description"), names)
        must_be_rooted(function["parameters"])


def _check_conversation(messages: Sequence[Any], short_ids: bool) -> None:
    known: set[str] = set()
    waiting: list[str] = []
    for message in messages:
        role = message.get("role")
        must(role in ("user", "assistant", "tool"), "a role is user, assistant or tool, and system only at first", role)
        if role == "tool":
            must(waiting, "a tool message answers a call of the message before", message)
            must_have(message, {"role", "tool_call_id", "content"}, set(), "a tool message")
            must(message["tool_call_id"] == waiting.pop(0), "results stand in call order, one a call", message)
            must(isinstance(message["content"], str), "a result is a string", message)
            continue
        must(not waiting, "each call has its result right behind it", waiting)
        if role == "user":
            must_have(message, {"role", "content"}, set(), "a user message")
            _check_content(message["content"])
        else:
            waiting = _check_assistant(message, known, short_ids)
    must(not waiting, "each call has its result right behind it", waiting)


def _check_content(content: Any) -> None:
    if isinstance(content, str):
        must_say(content, "a user message")
        return
    for part in must_list(content, "a user's content"):
        kind = part.get("type")
        if kind == "text":
            must_have(part, {"type", "text"}, set(), "a text part")
            must_say(part["text"], "a text part")
        else:
            must(kind == "image_url", "a part is a text or an image", kind)
            must_have(part["image_url"], {"url"}, {"detail"}, "an image")
            url = part["image_url"]["url"]
            must(isinstance(url, str) and url.startswith(("http", "data:image/")), "an image has a URL", url)


def _check_assistant(message: Mapping[str, Any], known: set[str], short_ids: bool) -> list[str]:
    """Checks an assistant message and returns the ids of its calls."""
    must_have(message, {"role", "content"}, {"tool_calls", *_ECHOED}, "an assistant message")
    content = message["content"]
    if "tool_calls" not in message:
        must(isinstance(content, str) and content, "an assistant message without calls has content", message)
        return []
    must(content is None or (isinstance(content, str) and content), "content beside calls is null or text", content)
    ids: list[str] = []
    for call in must_list(message["tool_calls"], "tool_calls"):
        must_have(call, {"id", "type", "function"}, {"extra_content"}, "a call")
        must_say(call["id"], "a call's id")
        must(call["id"] not in known, "ids of calls are unique in the conversation", call["id"])
        must(not short_ids or _SHORT_ID.fullmatch(call["id"]), "a call's id is nine letters or digits", call["id"])
        known.add(call["id"])
        must(call["type"] == "function", "a call is of a function")
        must_have(call["function"], {"name", "arguments"}, set(), "a called function")
        name = call["function"]["name"]
        must(isinstance(name, str) and NAME.fullmatch(name), "a called name is legal", name)
        must_be_object_text(call["function"]["arguments"])
        ids.append(call["id"])
    return ids
