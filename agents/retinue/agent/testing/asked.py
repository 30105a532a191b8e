"""What a scripted model server was asked, read out of any dialect as an OpenAI body, so that scripts need know one."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any


def text_of(content: Any) -> str:
    """The text of a message's content, whether it is text or parts."""
    if isinstance(content, list):
        return "\n\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")


def of_anthropic(body: Any) -> Any:
    """A body of Anthropic Messages as one of OpenAI."""
    messages = _system(text_of(body.get("system")))
    for message in body["messages"]:
        blocks = message["content"]
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        for block in blocks:
            if block["type"] == "tool_result":
                text = text_of(block.get("content"))
                messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": text})
        text = text_of([block for block in blocks if block["type"] == "text"])
        images = [_image(**block["source"]) for block in blocks if block["type"] == "image"]
        calls = [_call(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
        if text or images or calls or message["role"] == "assistant":
            messages.append(_said(message["role"], text, calls, images))
    tools = [_tool(tool["name"], tool.get("description"), tool["input_schema"]) for tool in body.get("tools", ())]
    return _body(body, messages, tools)


def of_gemini(body: Any) -> Any:
    """A body of generateContent as one of OpenAI; its calls have no ids, and are paired with results by their order."""
    messages = _system(text_of((body.get("systemInstruction") or {}).get("parts")))
    waiting: deque[str] = deque()
    for content in body["contents"]:
        parts = content["parts"]
        for part in parts:
            if result := part.get("functionResponse"):
                said = result["response"]
                text = said.get("output", said.get("error", json.dumps(said)))
                messages.append({"role": "tool", "tool_call_id": waiting.popleft(), "content": text})
        text = text_of([part for part in parts if "text" in part and not part.get("thought")])
        calls: list[dict[str, Any]] = []
        for made in (part["functionCall"] for part in parts if "functionCall" in part):
            calls.append(_call(f"call_{len(messages)}_{len(calls)}", made["name"], made.get("args", {})))
            waiting.append(calls[-1]["id"])
        images = [_image(each["mimeType"], each["data"]) for part in parts if (each := part.get("inlineData"))]
        images += [_image(url=part["fileData"]["fileUri"]) for part in parts if "fileData" in part]
        if text or images or calls:
            messages.append(_said("user" if content["role"] == "user" else "assistant", text, calls, images))
    declared = [each for tool in body.get("tools", ()) for each in tool.get("functionDeclarations", ())]
    tools = [_tool(each["name"], each.get("description"), each.get("parameters") or {}) for each in declared]
    return _body(body, messages, tools)


def of_ollama(body: Any) -> Any:
    """A body of Ollama's chat as one of OpenAI; results are paired with calls by their order."""
    messages: list[dict[str, Any]] = []
    waiting: deque[str] = deque()
    for message in body["messages"]:
        if message["role"] == "tool":
            messages.append({"role": "tool", "tool_call_id": waiting.popleft(), "content": message["content"]})
            continue
        made = [each["function"] for each in message.get("tool_calls", ())]
        calls = [_call(f"call_{len(messages)}_{at}", each["name"], each["arguments"]) for at, each in enumerate(made)]
        waiting.extend(call["id"] for call in calls)
        images = [_image(data=each) for each in message.get("images", ())]
        messages.append(_said(message["role"], message["content"], calls, images))
    return _body(body, messages, body.get("tools", ()))


def _system(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": text}] if text else []


def _said(
    role: str, text: str, calls: Sequence[Mapping[str, Any]], images: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """A message; its content is parts only where there are images, which stand behind the text."""
    texts = [{"type": "text", "text": text}] if text else []
    content = [*texts, *images] if images else text
    return {"role": role, "content": content, **({"tool_calls": list(calls)} if calls else {})}


def _image(media_type: str = "", data: str = "", *, url: str = "", **_: Any) -> dict[str, Any]:
    """An image by its base64 (Ollama does not say of what kind), or by its address."""
    return {"type": "image_url", "image_url": {"url": url or f"data:{media_type};base64,{data}"}}


def _call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _tool(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": parameters}}


def _body(body: Mapping[str, Any], messages: Sequence[Any], tools: Sequence[Any]) -> dict[str, Any]:
    return {"model": body.get("model", ""), "messages": list(messages), **({"tools": list(tools)} if tools else {})}
