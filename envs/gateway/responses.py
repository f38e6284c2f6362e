"""OpenAI's responses: ``POST /v1/responses``."""

from __future__ import annotations

import time
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
from gagpo.envs.gateway.parameters import RESPONSES, shared_options, tool_choice


def read(body: Json) -> ChatRequest:
    """The request in the JSON of a client. Raises: GatewayError."""
    RESPONSES.require(body)
    _require_plain(body)
    content = body.get("input")
    items = [("input", {"role": "user", "content": content})]
    if not isinstance(content, str):
        items = located(body, "input")
    messages = _messages(items)
    if not messages:
        raise GatewayError(400, "input must have at least 1 message")
    options = {
        **shared_options(body),
        "max_tokens": body.get("max_output_tokens"),
        "echo": _echo(body),
    }
    system = ("instructions", {"role": "system", "content": body.get("instructions")})
    return ChatRequest.of(options, (system, *messages), list(_tools(body)), {"max_tokens": "max_output_tokens"})


def _require_plain(body: Json) -> None:
    """Raises: GatewayError for parameters that have a value with an effect and one without."""
    text = body.get("text") or {}
    reasoning = body.get("reasoning") or {}
    include = body.get("include") or []
    if not isinstance(text, dict) or text.get("format") not in (None, {"type": "text"}):
        raise GatewayError(400, "text.format is not supported: responses are sampled as the model writes them")
    if text.get("verbosity") is not None:
        raise GatewayError(400, "text.verbosity is not supported: the model decides how long its answers are")
    if not isinstance(reasoning, dict) or reasoning.get("effort") is not None:
        raise GatewayError(400, "reasoning.effort is not supported: a model thinks as its chat template says")
    if not isinstance(include, list) or "message.output_text.logprobs" in include:
        raise GatewayError(400, "include must be a list without logprobs; ask /v1/chat/completions for them")


def _tools(body: Json) -> Iterator[Located]:
    """The tools as those of a chat, in which a built-in tool's type is an error."""
    for location, tool in located(body, "tools"):
        yield location, {"type": tool.get("type"), "function": tool}


def _echo(body: Json) -> Json:
    """The fields of the request that an answer repeats. The temperature is not one of them: the run decides it."""
    tools = [{"parameters": None, "strict": None, **tool} for tool in objects(body, "tools")]
    choice = body.get("tool_choice")
    return {
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": choice if isinstance(choice, str) else tool_choice(choice),
        "tools": tools,
        "top_p": 1.0,
        "error": None,
    }


def _messages(items: Sequence[Located]) -> list[Located]:
    """The items as messages of a chat; an answer's text and calls, which are separate items, are one message."""
    messages: list[Located] = []
    for location, item in items:
        item_type = item.get("type", "message")
        if item_type == "function_call_output":
            result = {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
            messages.append((location, result))
        elif item_type == "function_call":
            if not messages or messages[-1][1]["role"] != "assistant":
                messages.append((location, {"role": "assistant"}))
            messages[-1][1].setdefault("tool_calls", []).append({"id": item.get("call_id"), "function": item})
        elif item_type == "message":
            messages.append((location, {"role": item.get("role"), "content": item.get("content")}))
        elif item_type != "reasoning":
            raise GatewayError(400, f"{location}: items of type {str(item_type)[:40]!a} are not supported")
    return messages


def answer(request: ChatRequest, completions: Sequence[Completion], name: str) -> Json:
    """The JSON of an answer."""
    completion = completions[0]
    status = "incomplete" if completion.finish == "length" else "completed"
    output: list[Json] = []
    if completion.has_text_part:
        text_part = {"type": "output_text", "text": completion.content, "annotations": [], "logprobs": []}
        item_fields = {"id": f"msg-{name}", "type": "message", "role": "assistant", "status": status}
        output.append({**item_fields, "content": [text_part]})
    for call in completion.calls_with_text_arguments:
        item_fields = {"id": f"fc-{name}-{call['id']}", "type": "function_call", "status": "completed"}
        output.append({**item_fields, "call_id": call["id"], **call["function"]})
    return {
        **request.echo,
        "id": f"resp-{name}",
        "object": "response",
        "created_at": int(time.time()),
        "model": request.model,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output,
        "usage": {
            "input_tokens": completion.usage[0],
            "output_tokens": completion.usage[1],
            "total_tokens": sum(completion.usage),
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def stream(request: ChatRequest, completions: Sequence[Completion], name: str) -> str:
    """The answer as server-sent events."""
    response = answer(request, completions, name)
    response_created = {**response, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    stream_events: list[tuple[str, Json]] = [("response.created", {"response": response_created})]
    for index, item in enumerate(response["output"]):
        output_position = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            empty = {**item, "status": "in_progress", "content": []}
            content_events = _message_events(item["content"][0], {**output_position, "content_index": 0})
        else:
            empty = {**item, "status": "in_progress", "arguments": ""}
            content_events = _call_events(item, output_position)
        item_events = [
            ("output_item.added", {"output_index": index, "item": empty}),
            *content_events,
            ("output_item.done", {"output_index": index, "item": item}),
        ]
        stream_events += [(f"response.{event}", data) for event, data in item_events]
    stream_events.append((f"response.{response['status']}", {"response": response}))
    return events([(event, {"sequence_number": count, **data}) for count, (event, data) in enumerate(stream_events)])


def _message_events(text_part: Json, position: Json) -> list[tuple[str, Json]]:
    """The events of a message's only part, without the prefix ``response.``."""
    return [
        ("content_part.added", {**position, "part": {**text_part, "text": ""}}),
        ("output_text.delta", {**position, "delta": text_part["text"], "logprobs": []}),
        ("output_text.done", {**position, "text": text_part["text"], "logprobs": []}),
        ("content_part.done", {**position, "part": text_part}),
    ]


def _call_events(call: Json, position: Json) -> list[tuple[str, Json]]:
    """The events of a call's arguments, without the prefix ``response.``."""
    return [
        ("function_call_arguments.delta", {**position, "delta": call["arguments"]}),
        ("function_call_arguments.done", {**position, "arguments": call["arguments"], "name": call["name"]}),
    ]
