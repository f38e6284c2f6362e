"""OpenAI's chat completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from gagpo.envs.program.messages import ChatRequest, Completion, Json
from gagpo.envs.program.parameters import CHAT, chosen


def read(body: Json) -> ChatRequest:
    """The request in the JSON of a client. Raises: RequestRefused."""
    CHAT.require(body)
    return ChatRequest.of({**body, "tool_choice": chosen(body.get("tool_choice"))})


def answer(request: ChatRequest, completions: Sequence[Completion], name: str) -> Json:
    """The JSON of an answer."""
    choices = []
    for index, completion in enumerate(completions):
        called = {"tool_calls": calls_of(completion)} if completion.calls else {}
        content = completion.content or (None if called else "")
        message = {"role": "assistant", "content": content, "refusal": None, **called}
        logprobs = {"content": _tokens(completion), "refusal": None} if request.logprobs else None
        choices.append({
            "index": index, "message": message, "logprobs": logprobs, "finish_reason": completion.finish
        })  # fmt: skip
    prompt_tokens = max(completion.usage[0] for completion in completions)
    sampled_tokens = sum(completion.usage[1] for completion in completions)
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": sampled_tokens,
            "total_tokens": prompt_tokens + sampled_tokens,
        },
    }


def _tokens(completion: Completion) -> list[Json]:
    return [
        {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
        for token, logprob in completion.logprobs
    ]


def stream(request: ChatRequest, completions: Sequence[Completion], name: str) -> str:
    """The answer as server-sent events."""
    whole = answer(request, completions, name)
    about = {**{key: whole[key] for key in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    chunks: list[Json] = []
    for choice in whole["choices"]:
        delta = choice.pop("message")
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
        chunks.append({"choices": [{**choice, "delta": delta, "finish_reason": None}]})
        chunks.append({"choices": [{**choice, "delta": {}, "logprobs": None}]})
    if request.stream_options.include_usage:
        chunks.append({"choices": [], "usage": whole["usage"]})
    return "".join(f"data: {json.dumps({**about, **chunk})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def calls_of(completion: Completion) -> list[Json]:
    """The tool calls of an answer, with their arguments as text."""
    return [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in completion.calls
    ]
