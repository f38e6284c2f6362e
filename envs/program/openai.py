"""OpenAI's chat completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from gagpo.envs.program.messages import ChatRequest, Completion, Json, Message, Refused, assistant, objects

MOST_CHOICES, MOST_STOPS = 16, 16
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_IDLE = {"top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
"""Sampling parameters that training cannot follow, with the value at which they do nothing."""
_IDLE_TOO: Json = {"logit_bias": {}, "top_logprobs": 0, "response_format": {"type": "text"}}


def read(body: Json) -> ChatRequest:
    """The request in the JSON of a client. Raises: Refused."""
    for name, idle in {**_IDLE, **_IDLE_TOO}.items():
        if body.get(name) not in (None, idle):
            reason = "responses are sampled from the model's own distribution, which training needs"
            raise Refused(400, f"{name}={body[name]!a:.40} is not supported: {reason}; leave it out")
    said = [_message(one) for one in objects(body, "messages")]
    system = "\n\n".join(one["content"] for one in said if one["role"] == "system")
    others = [one for one in said if one["role"] != "system"]
    if not others or others[-1]["role"] == "assistant":
        raise Refused(400, "messages: the last must come from the user or a tool; an answer cannot be continued")
    stop = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
    if not isinstance(stop, list) or len(stop) > MOST_STOPS or not all(isinstance(s, str) and s for s in stop):
        raise Refused(400, f"stop must be a text or a list of at most {MOST_STOPS} texts")
    options = body.get("stream_options")
    limit = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    return ChatRequest(
        messages=[*([{"role": "system", "content": system}] if system else []), *others],
        tools=[] if body.get("tool_choice") == "none" else [_tool(one) for one in objects(body, "tools")],
        model=str(body.get("model", "")),
        max_tokens=_number(body, limit),
        stop=tuple(stop),
        choices=min(_number(body, "n") or 1, MOST_CHOICES),
        logprobs=bool(body.get("logprobs")),
        stream=bool(body.get("stream")),
        usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def _number(body: Json, key: str) -> int | None:
    value = body.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise Refused(400, f"{key} must be a whole number of at least 1")
    return value


def _tool(given: Json) -> Json:
    about = given.get("function")
    if not isinstance(about, dict) or not isinstance(about.get("name"), str):
        raise Refused(400, "tools: only functions with a name are supported")
    shown = {"description": "", "parameters": {"type": "object"}, **{k: v for k, v in about.items() if v is not None}}
    return {"type": "function", "function": {name: shown[name] for name in ("name", "description", "parameters")}}


def _message(given: Json) -> Message:
    role, text = given.get("role"), text_of(given.get("content"))
    if not isinstance(role, str) or role not in _ROLES:
        raise Refused(400, f"messages: unknown role {role!a:.80}; choose from {', '.join(_ROLES)}")
    if role == "assistant":
        calls = [(one.get("id"), one.get("function")) for one in objects(given, "tool_calls")]
        named = [(number, about) for number, about in calls if isinstance(about, dict)]
        return assistant(
            text,
            [{"id": str(n), "name": str(f.get("name")), "arguments": _arguments(f.get("arguments"))} for n, f in named],
        )
    return {
        "role": _ROLES[role],
        "content": text,
        **({"tool_call_id": str(given.get("tool_call_id"))} if role == "tool" else {}),
    }


def text_of(content: object) -> str:
    """The text of a message: a string, or a list of parts of text. Raises: Refused."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = (
        [one.get("text") if isinstance(one, dict) else None for one in content] if isinstance(content, list) else [None]
    )
    texts = [one for one in parts if isinstance(one, str)]
    if len(texts) < len(parts):
        raise Refused(400, "messages: content must be text; images, sound and files are not supported")
    return "".join(texts)


def _arguments(text: object) -> Json:
    """The arguments of a call that a program sends back: text that a model wrote."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": str(text)}


def answer(asked: ChatRequest, found: Sequence[Completion], name: str) -> Json:
    """The JSON of an answer."""
    choices = []
    for index, one in enumerate(found):
        called = {"tool_calls": calls_of(one)} if one.calls else {}
        said = {"role": "assistant", "content": one.content or (None if called else ""), "refusal": None, **called}
        tokens = {"logprobs": _logprobs(one) if asked.logprobs else None, "finish_reason": one.finish}
        choices.append({"index": index, "message": said, **tokens})
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
    if asked.usage:
        chunks.append({"choices": [], "usage": whole["usage"]})
    return "".join(f"data: {json.dumps({**about, **chunk})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def calls_of(one: Completion) -> list[Json]:
    """The tool calls of an answer, with their arguments as text."""
    texts = [{"name": call["name"], "arguments": json.dumps(call["arguments"])} for call in one.calls]
    return [{"id": call["id"], "type": "function", "function": f} for call, f in zip(one.calls, texts, strict=True)]


def _logprobs(one: Completion) -> Json:
    tokens = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in one.logprobs]
    return {"content": [{**token, "top_logprobs": []} for token in tokens], "refusal": None}
