"""The rules of requests to Gemini's generateContent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kit.dialect_rules import (
    must,
    must_be_base64,
    must_be_function,
    must_be_json,
    must_have,
    must_list,
    must_say,
)

_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,63}", re.ASCII)
_OPTIONAL = {"systemInstruction", "tools", "toolConfig", "generationConfig"}
_DATA = {"text", "functionCall", "functionResponse", "inlineData", "fileData", "executableCode", "codeExecutionResult"}
_ANY_TYPE = {"title", "description", "nullable", "default", "enum", "format", "type"}
_BY_TYPE = {
    "string": {"minLength", "maxLength", "pattern"},
    "number": {"minimum", "maximum"},
    "integer": {"minimum", "maximum"},
    "boolean": set[str](),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "propertyOrdering", "minProperties", "maxProperties"},
}
_FORMATS = {"string": {"date-time", "enum"}, "number": {"float", "double"}, "integer": {"int32", "int64"}}


def check_gemini(body: Mapping[str, Any], *, signed: bool = True) -> None:
    """Raises AssertionError naming the rule that the body breaks. `signed`: the model wants signatures (3 and up)."""
    must_be_json(body)
    must_have(body, {"contents"}, _OPTIONAL, "the body")
    if "systemInstruction" in body:
        must_have(body["systemInstruction"], {"parts"}, {"role"}, "systemInstruction")
        for part in must_list(body["systemInstruction"]["parts"], "parts"):
            must_say(part.get("text"), "the system's text")
    _check_tools(body)
    waiting: list[Mapping[str, Any]] = []
    before = ""
    for content in must_list(body["contents"], "contents"):
        must_have(content, {"role", "parts"}, set(), "a content")
        role, parts = content["role"], must_list(content["parts"], "parts")
        must(role in ("user", "model"), "a role is user or model", role)
        must(before or role == "user", "the contents begin with the user")
        for part in parts:
            _check_part(part)
        kind = "results" if "functionResponse" in parts[0] else role
        must(kind != before, "contents of one role are one content", kind)
        before = kind
        if waiting or kind == "results":
            _check_results(parts, waiting, role)
            waiting = []
        elif role == "model":
            waiting = _check_model(parts, signed)
        else:
            must(not any("functionCall" in part for part in parts), "a user makes no calls")
    must(not waiting, "each call has its result in the next content", waiting)


def _check_part(part: Any) -> None:
    must_have(part, set(), _DATA | {"thought", "thoughtSignature"}, "a part")
    data = _DATA & part.keys()
    must(len(data) == 1, "a part has one kind of data", sorted(data))
    if "text" in part:
        must(part["text"] or "thoughtSignature" in part, "a text is not empty, unless it is signed", part)
    if "thoughtSignature" in part:
        must_say(part["thoughtSignature"], "a signature")
    if "inlineData" in part:
        must_have(part["inlineData"], {"mimeType", "data"}, set(), "inlineData")
        must_be_base64(part["inlineData"]["data"], "inlineData")
    if "fileData" in part:
        must_have(part["fileData"], {"fileUri"}, {"mimeType"}, "fileData")


def _check_model(parts: Sequence[Any], signed: bool) -> list[Mapping[str, Any]]:
    """Checks a model's parts and returns its calls."""
    must(not any("functionResponse" in part for part in parts), "a model gives no results")
    calling = [part for part in parts if "functionCall" in part]
    for part in calling:
        call = part["functionCall"]
        must_have(call, {"name"}, {"args", "id"}, "a functionCall")
        must(isinstance(call["name"], str) and _NAME.fullmatch(call["name"]), "a called name is legal", call)
        must(isinstance(call.get("args", {}), dict), "args are an object", call)
        must("id" not in call or call["id"], "an id is not empty", call)
    if calling and signed:
        must("thoughtSignature" in calling[0], "the first call of a step is signed", calling[0])
    return [part["functionCall"] for part in calling]


def _check_results(parts: Sequence[Any], waiting: Sequence[Mapping[str, Any]], role: str) -> None:
    must(role == "user", "results come from the user", role)
    must(waiting, "a functionResponse answers a call of the content before", parts)
    must(all("functionResponse" in part for part in parts), "results share their content with nothing", parts)
    must(len(parts) == len(waiting), "there are as many results as calls", len(parts))
    for part, call in zip(parts, waiting, strict=True):
        result = part["functionResponse"]
        must_have(result, {"name", "response"}, {"id"}, "a functionResponse")
        must(result["name"] == call["name"], "results stand in call order, under the call's name", result)
        must(result.get("id") == call.get("id"), "a result has its call's id, and none where that has none", result)
        must(isinstance(result["response"], dict), "a response is an object", result)


def _check_tools(body: Mapping[str, Any]) -> None:
    names: set[str] = set()
    for tool in must_list(body["tools"], "tools") if "tools" in body else ():
        must_have(tool, {"functionDeclarations"}, set(), "a tool")
        for function in must_list(tool["functionDeclarations"], "functionDeclarations"):
            must_have(function, {"name"}, {"description", "parameters"}, "a function")
            must_be_function(function["name"], function.get("description"), names, legal=_NAME)
            if "parameters" in function:
                must(function["parameters"].get("type") == "object", "parameters are an object", function)
                must(function["parameters"].get("properties"), "parameters without properties are left out", function)
                check_gemini_schema(function["parameters"])


def check_gemini_schema(schema: Any) -> None:
    """Raises AssertionError naming the rule of Gemini's schema language that a schema breaks."""
    must(isinstance(schema, dict), "a schema is an object", schema)
    must(isinstance(schema.get("nullable", False), bool), "nullable is true or false", schema)
    must(all(isinstance(schema.get(key, ""), str) for key in ("title", "description")), "texts are texts", schema)
    if "anyOf" in schema:
        must_have(schema, {"anyOf"}, {"title", "description", "nullable"}, "a schema of alternatives")
        for each in must_list(schema["anyOf"], "anyOf"):
            check_gemini_schema(each)
        return
    kind = schema.get("type")
    must(isinstance(kind, str) and kind in _BY_TYPE, "a schema has one type", kind)
    unknown = schema.keys() - _ANY_TYPE - _BY_TYPE[kind]
    must(not unknown, f"a schema of type {kind} has no words that Gemini does not know", sorted(unknown))
    if "format" in schema:
        must(schema["format"] in _FORMATS.get(kind, ()), "a format is one of its type's", schema["format"])
    if "enum" in schema:
        must(kind == "string", "only strings have an enum", schema)
        for value in must_list(schema["enum"], "enum"):
            must(isinstance(value, str) and value, "an enum's values are strings that are not empty", value)
    if kind == "array":
        check_gemini_schema(schema.get("items"))
    properties = schema.get("properties", {})
    must("properties" not in schema or properties, "properties are not empty", schema)
    for each in properties.values():
        check_gemini_schema(each)
    for name in must_list(schema["required"], "required") if "required" in schema else ():
        must(name in properties, "what is required is a property", name)
