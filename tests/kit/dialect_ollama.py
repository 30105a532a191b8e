"""The rules of requests to Ollama's own API."""

from __future__ import annotations

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

_OPTIONAL = {"stream", "tools", "keep_alive", "think", "format"}


def check_ollama(body: Mapping[str, Any]) -> None:
    """Raises AssertionError naming the rule that the body breaks."""
    must_be_json(body)
    must_have(body, {"model", "messages", "options"}, _OPTIONAL, "the body")
    must_say(body["model"], "the model")
    must(isinstance(body.get("stream", True), bool), "stream is true or false")
    window = body["options"].get("num_ctx")
    must(type(window) is int and window > 0, "num_ctx is set, or the conversation is cut without a word", window)
    names: set[str] = set()
    for tool in must_list(body["tools"], "tools") if "tools" in body else ():
        must_have(tool, {"type", "function"}, set(), "a tool")
        must_have(tool["function"], {"name", "parameters"}, {"description"}, "a function")
        must_be_function(tool["function"]["name"], tool["function"].get("description"), names)
        must_be_rooted(tool["function"]["parameters"])
    messages = must_list(body["messages"], "messages")
    if messages[0].get("role") == "system":
        must_say(messages[0].get("content"), "the system message")
        messages = messages[1:]
    must(messages and messages[0].get("role") == "user", "the conversation begins with a user message")
    _check_conversation(messages)


def _check_conversation(messages: Sequence[Any]) -> None:
    waiting: list[str] = []
    for message in messages:
        role = message.get("role")
        must(role in ("user", "assistant", "tool"), "a role is user, assistant or tool, and system only at first", role)
        if role == "tool":
            must(waiting, "a tool message answers a call of the message before", message)
            must_have(message, {"role", "tool_name", "content"}, set(), "a tool message")
            must(message["tool_name"] == waiting.pop(0), "results stand in call order, one a call", message)
            must(isinstance(message["content"], str), "a result is a string", message)
            continue
        must(not waiting, "each call has its result right behind it", waiting)
        if role == "user":
            must_have(message, {"role", "content"}, {"images"}, "a user message")
            must(isinstance(message["content"], str), "content is a string", message)
            must(message["content"].strip() or "images" in message, "a user message is not blank", message)
            for image in must_list(message["images"], "images") if "images" in message else ():
                must_be_base64(image, "an image")
        else:
            waiting = _check_assistant(message)
    must(not waiting, "each call has its result right behind it", waiting)


def _check_assistant(message: Mapping[str, Any]) -> list[str]:
    """Checks an assistant message and returns the names that it calls."""
    must_have(message, {"role", "content"}, {"tool_calls", "thinking"}, "an assistant message")
    must(isinstance(message["content"], str), "content is a string", message)
    must(message["content"] or "tool_calls" in message, "an assistant message says or calls something", message)
    names = []
    for call in must_list(message["tool_calls"], "tool_calls") if "tool_calls" in message else ():
        must_have(call, {"function"}, {"id"}, "a call")
        must_have(call["function"], {"name", "arguments"}, {"index"}, "a called function")
        must(isinstance(call["function"]["arguments"], dict), "arguments are an object", call)
        name = call["function"]["name"]
        must(isinstance(name, str) and NAME.fullmatch(name), "a called name is legal", name)
        names.append(name)
    return names
