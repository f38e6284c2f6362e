"""OpenAI's chat completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from gagpo.envs.program.messages import ChatRequest, Completion, Json

read = ChatRequest.of


def answer(asked: ChatRequest, found: Sequence[Completion], name: str) -> Json:
    """The JSON of an answer."""
    choices = []
    for index, one in enumerate(found):
        called = {"tool_calls": calls_of(one)} if one.calls else {}
        said = {"role": "assistant", "content": one.content or (None if called else ""), "refusal": None, **called}
        tokens = [{"token": t, "logprob": p, "bytes": list(t.encode()), "top_logprobs": []} for t, p in one.logprobs]
        logprobs = {"content": tokens, "refusal": None} if asked.logprobs else None
        choices.append({"index": index, "message": said, "logprobs": logprobs, "finish_reason": one.finish})
    prompt, sampled = max(one.usage[0] for one in found), sum(one.usage[1] for one in found)
    usage = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
    about = {"id": f"chatcmpl-{name}", "object": "chat.completion", "created": int(time.time()), "model": asked.model}
    return {**about, "choices": choices, "usage": usage}


def stream(asked: ChatRequest, found: Sequence[Completion], name: str) -> str:
    """The answer as server-sent events."""
    whole = answer(asked, found, name)
    about = {**{key: whole[key] for key in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    chunks: list[Json] = []
    for choice in whole["choices"]:
        said = choice.pop("message")
        if "tool_calls" in said:
            said["tool_calls"] = [{"index": i, **call} for i, call in enumerate(said["tool_calls"])]
        chunks.append({"choices": [{**choice, "delta": said, "finish_reason": None}]})
        chunks.append({"choices": [{**choice, "delta": {}, "logprobs": None}]})
    if asked.stream_options.get("include_usage"):
        chunks.append({"choices": [], "usage": whole["usage"]})
    return "".join(f"data: {json.dumps({**about, **chunk})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def calls_of(one: Completion) -> list[Json]:
    """The tool calls of an answer, with their arguments as text."""
    return [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in one.calls
    ]
