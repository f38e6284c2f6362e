"""Anthropic's messages: ``POST /v1/messages``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from gagpo.envs.gateway.messages import (
    ChatRequest,
    Completion,
    GatewayError,
    Json,
    Located,
    events,
    located,
    objects,
)
from gagpo.envs.gateway.parameters import MESSAGES, shared_options

_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CALL_PARTS = ("tool_use", "tool_result")


def read(body: Json) -> ChatRequest:
    """The request in the JSON of a client. Raises: GatewayError."""
    MESSAGES.require(body)
    _require_plain(body)
    messages = located(body, "messages")
    if not messages:
        raise GatewayError(400, "messages must have at least 1 item")
    options = {
        **shared_options(body),
        "max_tokens": body.get("max_tokens"),
        "stop": body.get("stop_sequences"),
    }
    system = ("system", {"role": "system", "content": body.get("system")})
    chat = (located_message for location, message in messages for located_message in _messages(location, message))
    return ChatRequest.of(options, (system, *chat), list(_tools(body)), {"stop": "stop_sequences"})


def _require_plain(body: Json) -> None:
    """Raises: GatewayError for thoughts and structured output, whose parameters have a value without effect."""
    thinking = body.get("thinking")
    if thinking is not None and thinking != {"type": "disabled"}:
        raise GatewayError(400, "thinking is not supported: whether a model thinks is a matter of its chat template")
    output = body.get("output_config") or {}
    if not isinstance(output, dict) or any(value is not None for value in output.values()):
        raise GatewayError(400, "output_config is not supported: responses are sampled as the model writes them")


def _tools(body: Json) -> Iterator[Located]:
    """The tools as those of a chat. Raises: GatewayError for Anthropic's own tools."""
    for location, tool in located(body, "tools"):
        if tool.get("type") not in (None, "custom"):
            raise GatewayError(400, f"{location}.type must be 'custom' (got {str(tool['type'])[:40]!a})")
        yield location, {"function": {**tool, "parameters": tool.get("input_schema")}}


def _messages(place: str, message: Json) -> list[Located]:
    """A message as messages of a chat, in which each result of a tool is a separate message."""
    if not isinstance(message.get("content"), list):
        return [(place, message)]
    blocks = objects(message, "content")
    texts = [block for block in blocks if block.get("type") not in _CALL_PARTS]
    results = [
        (place, {"role": "tool", "content": block.get("content"), "tool_call_id": block.get("tool_use_id")})
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    calls = [
        {"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input")}}
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    if results and not texts and not calls:
        return results
    return [*results, (place, {"role": message.get("role"), "content": texts, "tool_calls": calls})]


def answer(request: ChatRequest, completions: Sequence[Completion], name: str) -> Json:
    """The JSON of an answer."""
    completion = completions[0]
    content: list[Json] = []
    if completion.has_text_part:
        content.append({"type": "text", "text": completion.content})
    for call in completion.calls:
        function = call["function"]
        content.append({
            "type": "tool_use", "id": call["id"], "name": function["name"], "input": function["arguments"]
        })  # fmt: skip
    at_stop_string = completion.finish == "stop" and completion.stop
    return {
        "id": f"msg-{name}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": "stop_sequence" if at_stop_string else _FINISH[completion.finish],
        "stop_sequence": completion.stop if at_stop_string else None,
        "usage": {"input_tokens": completion.usage[0], "output_tokens": completion.usage[1]},
    }


def stream(request: ChatRequest, completions: Sequence[Completion], name: str) -> str:
    """The answer as server-sent events."""
    message = answer(request, completions, name)
    stop_fields = {key: message[key] for key in ("stop_reason", "stop_sequence")}
    message_start = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    stream_events: list[tuple[str, Json]] = [("message_start", {"message": message_start})]
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty = {**block, "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        stream_events.append(("content_block_start", {"index": index, "content_block": empty}))
        stream_events.append(("content_block_delta", {"index": index, "delta": delta}))
        stream_events.append(("content_block_stop", {"index": index}))
    usage = {"output_tokens": message["usage"]["output_tokens"]}
    return events([*stream_events, ("message_delta", {"delta": stop_fields, "usage": usage}), ("message_stop", {})])
