"""OpenAI's responses: ``POST /v1/responses``."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gagpo.envs.program import openai
from gagpo.envs.program.messages import ChatRequest, Completion, Json, RequestRefused, events, objects


def read(body: Json) -> ChatRequest:
    """The request in the JSON of a client. Raises: RequestRefused."""
    if body.get("previous_response_id") or body.get("conversation"):
        raise RequestRefused(400, "previous_response_id is not supported: send the whole conversation as input")
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else objects(body, "input")
    shape = body.get("text")
    asked = {
        **body,
        "messages": [{"role": "system", "content": body.get("instructions")}, *_messages(items)],
        "tools": [{"type": one.get("type"), "function": one} for one in objects(body, "tools")],
        "max_tokens": body.get("max_output_tokens"),
        "response_format": shape.get("format") if isinstance(shape, dict) else None,
    }
    return ChatRequest.of(asked)


def _messages(items: Sequence[Json]) -> list[Json]:
    """The items as messages of a chat; an answer's text and calls, which are items of their own, are one message."""
    found: list[Json] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            found.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
        elif kind == "function_call":
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant"})
            found[-1].setdefault("tool_calls", []).append({"id": item.get("call_id"), "function": item})
        elif kind == "message":
            found.append({"role": item.get("role"), "content": item.get("content")})
        elif kind != "reasoning":
            raise RequestRefused(400, f"input: items of type {kind!a:.40} are not supported")
    return found


def answer(asked: ChatRequest, found: Sequence[Completion], name: str) -> Json:
    """The JSON of an answer."""
    one, output = found[0], list[Json]()
    status = "incomplete" if one.finish == "length" else "completed"
    if one.content or not one.calls:
        part = {"type": "output_text", "text": one.content, "annotations": [], "logprobs": []}
        about = {"id": f"msg-{name}", "type": "message", "role": "assistant", "status": status}
        output.append({**about, "content": [part]})
    for call in openai.calls_of(one):
        about = {"id": f"fc-{name}-{call['id']}", "type": "function_call", "status": "completed"}
        output.append({**about, "call_id": call["id"], **call["function"]})
    usage = {"input_tokens": one.usage[0], "output_tokens": one.usage[1], "total_tokens": sum(one.usage)}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": f"resp-{name}",
        "object": "response",
        "created_at": int(time.time()),
        "model": asked.model,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output,
        "usage": {**usage, **details},
    }


def stream(asked: ChatRequest, found: Sequence[Completion], name: str) -> str:
    """The answer as server-sent events."""
    whole = answer(asked, found, name)
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    empty: Json
    listed: list[tuple[str, Json]] = [("response.created", {"response": begun})]
    for index, item in enumerate(whole["output"]):
        at = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            place, (part,), empty = {**at, "content_index": 0}, item["content"], {"content": []}
            inner = [
                ("content_part.added", {**place, "part": {**part, "text": ""}}),
                ("output_text.delta", {**place, "delta": part["text"], "logprobs": []}),
                ("output_text.done", {**place, "text": part["text"], "logprobs": []}),
                ("content_part.done", {**place, "part": part}),
            ]
        else:
            empty, said = {"arguments": ""}, item["arguments"]
            done = {**at, "arguments": said, "name": item["name"]}
            inner = [("function_call_arguments.delta", {**at, "delta": said}), ("function_call_arguments.done", done)]
        begins = ("output_item.added", {"output_index": index, "item": {**item, "status": "in_progress", **empty}})
        ends = ("output_item.done", {"output_index": index, "item": item})
        listed += [(f"response.{kind}", data) for kind, data in (begins, *inner, ends)]
    listed.append((f"response.{whole['status']}", {"response": whole}))
    return events([(kind, {"sequence_number": count, **data}) for count, (kind, data) in enumerate(listed)])
