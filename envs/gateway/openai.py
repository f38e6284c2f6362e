"""OpenAI's chat completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from gagpo.envs.gateway.messages import ChatRequest, Completion, Json
from gagpo.envs.gateway.parameters import CHAT, shared_options


def read(body: Json) -> ChatRequest:
    """The request in the JSON of a client. Raises: GatewayError."""
    CHAT.require(body)
    return ChatRequest.of({**body, **shared_options(body)})


def answer(request: ChatRequest, completions: Sequence[Completion], name: str) -> Json:
    """The JSON of an answer."""
    choices = []
    for index, completion in enumerate(completions):
        calls = {"tool_calls": completion.calls_with_text_arguments} if completion.calls else {}
        content = completion.content or (None if calls else "")
        message = {"role": "assistant", "content": content, "refusal": None, **calls}
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
        {"token": token, "logprob": logprob, "bytes": _bytes(token), "top_logprobs": []}
        for token, logprob in completion.logprobs
    ]


def _bytes(token: str) -> list[int] | None:
    """The bytes of a token's text; None for a part of a character, whose bytes the text does not show."""
    return None if "\ufffd" in token else list(token.encode())


def stream(request: ChatRequest, completions: Sequence[Completion], name: str) -> str:
    """The answer as server-sent events."""
    answer_body = answer(request, completions, name)
    chunk_fields = {
        "id": answer_body["id"],
        "created": answer_body["created"],
        "model": answer_body["model"],
        "object": "chat.completion.chunk",
    }
    chunks: list[Json] = []
    for choice in answer_body["choices"]:
        delta = choice.pop("message")
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
        chunks.append({"choices": [{**choice, "delta": delta, "finish_reason": None}]})
        chunks.append({"choices": [{**choice, "delta": {}, "logprobs": None}]})
    if request.stream_options.include_usage:
        chunks.append({"choices": [], "usage": answer_body["usage"]})
    return "".join(f"data: {json.dumps({**chunk_fields, **chunk})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
