"""Parameters of requests: which ones the gateway follows, which make no difference, and which it rejects.

The lists are those of the public references of the three protocols. A parameter outside of them is rejected, as OpenAI
and Anthropic do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gagpo.base.nearest import hint
from gagpo.envs.gateway.messages import GatewayError, Json

_DISTRIBUTION = "responses are sampled from the model's own distribution, which training needs"
_TEMPLATE = "whether a model thinks is a matter of its chat template"
_CALLS = "the model decides which tools it calls, and how many"
_TEXT = "only text is supported"
_SERVED = "the gateway stores nothing and has no tools of its own"


@dataclass(frozen=True)
class Parameters:
    """What the requests of one protocol may contain.

    followed: parameters that the gateway reads.
    harmless: accepted, because no prompt and no answer depends on them.
    decided: accepted without effect, because the run decides what they ask for. Frameworks always send them, so a
        rejection would exclude unchanged programs.
    default: accepted only with one of these values, which ask for what happens anyway.
    rejected: rejected, with the reason.
    """

    followed: frozenset[str]
    harmless: frozenset[str]
    decided: frozenset[str]
    default: Mapping[str, tuple[Any, ...]]
    rejected: Mapping[str, str] = field(default_factory=dict)

    def require(self, body: Json) -> None:
        """Raises: GatewayError for a parameter that would have no effect."""
        for name, value in body.items():
            if value is None or name in self.followed or name in self.harmless or name in self.decided:
                continue
            # A client's default, which asks for what happens anyway.
            if name in self.default and any(_same(value, default) for default in self.default[name]):
                continue
            parameter = f"{name[:80]}={repr(value)[:40]}" if _is_short(value) else name[:80]
            if name in self.default or name in self.rejected:
                reason = self.rejected.get(name, _DISTRIBUTION)
                raise GatewayError(400, f"{parameter} is not supported: {reason}; leave it out")
            raise GatewayError(400, f"unknown parameter {name[:80]!a}; {hint(name[:80], sorted(self.followed))}")


def _is_short(value: object) -> bool:
    """Whether a value can be quoted without rendering a large one first."""
    return isinstance(value, bool | int | float) or (isinstance(value, str | dict | list) and len(value) <= 40)


def _same(value: object, default: object) -> bool:
    """Whether a value is the default: in Python, True == 1 and False == 0, which JSON distinguishes."""
    return value == default and isinstance(value, bool) == isinstance(default, bool)


_SAMPLING: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
}
_OPENAI_HARMLESS = frozenset({
    "metadata", "user", "safety_identifier", "service_tier", "store", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention",
})  # fmt: skip
_FOLLOWED = frozenset({"model", "tools", "tool_choice", "stream", "stream_options"})

CHAT = Parameters(
    followed=_FOLLOWED | {"messages", "max_tokens", "max_completion_tokens", "stop", "n", "logprobs"},
    harmless=_OPENAI_HARMLESS | {"prediction"},
    decided=frozenset({"temperature", "seed"}),
    default={
        **_SAMPLING,
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "parallel_tool_calls": (True,),
        "functions": ([],),
    },
    rejected={
        "parallel_tool_calls": _CALLS,
        "functions": "it is deprecated; use tools",
        "function_call": "it is deprecated; use tool_choice",
        "modalities": _TEXT,
        "audio": _TEXT,
        "reasoning_effort": _TEMPLATE,
        "verbosity": "the model decides how long its answers are",
        "web_search_options": _SERVED,
        "moderation": _SERVED,
    },
)

RESPONSES = Parameters(
    followed=_FOLLOWED | {"input", "instructions", "max_output_tokens", "text", "reasoning", "include"},
    harmless=_OPENAI_HARMLESS | {"max_tool_calls"},  # it counts calls of tools that the server carries out
    decided=frozenset({"temperature", "seed"}),
    default={
        **_SAMPLING,
        "background": (False,),
        "truncation": ("disabled",),
        "parallel_tool_calls": (True,),
    },
    rejected={
        "previous_response_id": "send the whole conversation as input",
        "conversation": "send the whole conversation as input",
        "prompt": "send its text as input",
        "background": _SERVED,
        "background_options": _SERVED,
        "access_programs": _SERVED,
        "moderation": _SERVED,
        "image": _TEXT,
        "truncation": "an episode whose prompt is too long ends",
        "context_management": "an episode whose prompt is too long ends",
        "parallel_tool_calls": _CALLS,
    },
)

MESSAGES = Parameters(
    followed=_FOLLOWED | {"messages", "system", "max_tokens", "stop_sequences", "thinking", "output_config"},
    harmless=frozenset(
        {
            "metadata",
            "service_tier",
            "inference_geo",
            "cache_control",
            "workspace_id",
            "user_profile_id",
            "diagnostics",
            "billing_policy",
        }
    ),
    decided=frozenset({"temperature"}),
    default=_SAMPLING,
    rejected={
        "container": _SERVED,
        "mcp_servers": _SERVED,
        "fallbacks": "the gateway has a single model",
        "fallback_credit_token": "the gateway has a single model",
        "thread": "send the whole conversation as messages",
        "compaction": "an episode whose prompt is too long ends",
        "context_management": "an episode whose prompt is too long ends",
        "output_format": _DISTRIBUTION,
        "speed": "the run decides how fast it samples",
    },
)


def shared_options(body: Json) -> Json:
    """The options that all protocols give the same name, such as ``model`` and ``stream``.

    Raises: GatewayError for a choice among the tools.
    """
    return {
        "model": body.get("model"),
        "stream": body.get("stream"),
        "temperature": body.get("temperature"),
        "seed": body.get("seed"),
        "tool_choice": tool_choice(body.get("tool_choice")),
    }


def tool_choice(choice: object) -> str:
    """``none`` if a request's ``tool_choice`` forbids calls, else ``auto``.

    ``required`` and ``any`` are accepted because frameworks always send them; the model may answer with text anyway.

    Raises: GatewayError for a choice among the tools.
    """
    choice_type = choice
    if isinstance(choice, dict):
        choice_type = choice.get("type")
        if choice.get("disable_parallel_tool_use"):
            raise GatewayError(400, f"tool_choice.disable_parallel_tool_use is not supported: {_CALLS}; leave it out")
    if choice_type not in (None, "auto", "none", "required", "any"):
        quoted = repr(choice)[:60] if _is_short(choice) else "this"
        raise GatewayError(400, f"tool_choice={quoted} is not supported: {_CALLS}; choose auto or none")
    return "none" if choice_type == "none" else "auto"
