"""Anthropic's messages: ``POST /v1/messages``."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gagpo.envs.program.messages import ChatRequest, Completion, Json, RequestRefused, events, objects

_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read(body: Json) -> ChatRequest:
    """The request in the JSON of a client. Raises: RequestRefused."""
    if isinstance(thinking := body.get("thinking"), dict) and thinking.get("type") == "enabled":
        raise RequestRefused(400, "thinking is not supported: whether a model thinks is a matter of its chat template")
    choice = body.get("tool_choice")
    said = [made for one in objects(body, "messages") for made in _messages(one)]
    tools = [{**one, "parameters": one.get("input_schema")} for one in objects(body, "tools")]
    asked = {
        **body,
        "messages": [{"role": "system", "content": body.get("system")}, *said],
        "tools": [{"function": one} for one in tools],
        "tool_choice": choice.get("type") if isinstance(choice, dict) else None,
        "stop": body.get("stop_sequences"),
    }
    return ChatRequest.of(asked)


def _messages(given: Json) -> list[Json]:
    """A message as messages of a chat: each result of a tool is one of its own."""
    if not isinstance(given.get("content"), list):
        return [given]
    blocks = objects(given, "content")
    texts = [one for one in blocks if one.get("type") not in ("tool_use", "tool_result")]
    results = [one for one in blocks if one.get("type") == "tool_result"]
    used = [{"name": one.get("name"), "arguments": one.get("input")} for one in blocks if one.get("type") == "tool_use"]
    found = [{"role": "tool", "content": one.get("content"), "tool_call_id": one.get("tool_use_id")} for one in results]
    said = {"role": given.get("role"), "content": texts, "tool_calls": [{"function": one} for one in used]}
    return [*found, *([said] if texts or used or not found else [])]


def answer(asked: ChatRequest, found: Sequence[Completion], name: str) -> Json:
    """The JSON of an answer."""
    one = found[0]
    content: list[Json] = [{"type": "text", "text": one.content}] if one.content or not one.calls else []
    for call in one.calls:
        used = call["function"]
        content.append({"type": "tool_use", "id": call["id"], "name": used["name"], "input": used["arguments"]})
    about = {"id": f"msg-{name}", "type": "message", "role": "assistant", "model": asked.model, "content": content}
    usage = {"input_tokens": one.usage[0], "output_tokens": one.usage[1]}
    return {**about, "stop_reason": _FINISH[one.finish], "stop_sequence": None, "usage": usage}


def stream(asked: ChatRequest, found: Sequence[Completion], name: str) -> str:
    """The answer as server-sent events."""
    whole = answer(asked, found, name)
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    listed: list[tuple[str, Json]] = [("message_start", {"message": {**whole, "content": [], "stop_reason": None}})]
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty, text = {**block, "input": {}}, json.dumps(block["input"])
            delta = {"type": "input_json_delta", "partial_json": text}
        listed.append(("content_block_start", {"index": index, "content_block": empty}))
        listed.append(("content_block_delta", {"index": index, "delta": delta}))
        listed.append(("content_block_stop", {"index": index}))
    usage = {"output_tokens": whole["usage"]["output_tokens"]}
    return events([*listed, ("message_delta", {"delta": ended, "usage": usage}), ("message_stop", {})])
