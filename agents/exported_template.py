"""Chat templates that contain the prompt of training, so that other programs show conversations as training did.

The added part is plain Jinja that llama.cpp also reads: constants, one loop and no functions. It has three limits: a
template cannot read actions, count turns or show a window of them. What it writes is compared with what training
writes, and a template that differs stays as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from gagpo.agents import chat_template
from gagpo.agents.chat_template import DATE, PLACEHOLDER, WITH_PROMPT
from gagpo.agents.context import Context
from gagpo.agents.program_context import ProgramContext
from gagpo.agents.prompts import Message, Prompt
from gagpo.agents.trained_chat import DATA, TrainedChat
from gagpo.base.errors import GagpoError
from gagpo.data import Turn

_SAMPLES = (
    [{"role": "user", "content": "A question."}],
    [
        {"role": "user", "content": "A question."},
        {"role": "assistant", "content": "An answer."},
        {"role": "user", "content": "Another."},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "A third one."},
    ],
)


class ExportedTemplate(NamedTuple):
    """The chat template of an exported model.

    text: of the template; None if it stays as it is.
    missing: what it does not show of training, as the end of a sentence; '' if nothing.
    """

    text: str | None
    missing: str = ""


def exported_template(context: Context) -> ExportedTemplate:
    """The template of ``context``'s tokenizer with the prompt of training, as far as a template can have it."""
    original = context.tokenizer.chat_template
    variables = _variables(context)
    missing = _missing(context, original)
    if missing:
        return ExportedTemplate(None, missing)
    added = [*variables, *_prompt_lines(context)]
    if not added:
        return ExportedTemplate(None)
    text = "\n".join((f"{{%- if {WITH_PROMPT} is not defined or {WITH_PROMPT} -%}}", *added, "{%- endif -%}"))
    text += "{{ '' }}" + original  # an expression, since what follows a block would lose its first line break
    if not _shows_the_same(context, text):
        return ExportedTemplate(None, "the chat template cannot be extended")
    has_today = "strftime_now" in original and "date_string" not in original
    return ExportedTemplate(text, f"it prints today's date, and training {DATE}" if has_today else "")


def _missing(context: Context, original: object) -> str:
    """Why no template can show what training showed; '' if one can."""
    if not isinstance(original, str):
        return "the tokenizer has several chat templates"
    if context.described_tools and context.toolbox:
        return "the messages describe the tools, because the chat template has no place for them"
    if isinstance(context, ProgramContext):
        return ""
    if context.history != "full":
        return f"each prompt is one message with the last {context.history} turns (context.history)"
    prompt = context.prompt_format
    if _around(prompt, context.interface.instructions, 1) != _around(prompt, context.interface.instructions, 2):
        return "the text of a message depends on the turns before it"
    return ""


def _variables(context: Context) -> list[str]:
    """Settings of the template's own variables, which a client may still override."""
    original = str(context.tokenizer.chat_template)
    values = dict(context.template)
    date = values.pop("date", DATE)
    if "date_string" in original:
        values["date_string"] = chat_template.variables({"date": date})["date_string"]
    return [
        f"{{%- if {name} is not defined %}}{{% set {name} = {_literal(value)} %}}{{% endif -%}}"
        for name, value in values.items()
    ]


def _prompt_lines(context: Context) -> list[str]:
    """Jinja that replaces ``messages`` and ``tools`` by those of training; none if they are equal."""
    if isinstance(context, ProgramContext):
        return []
    prompt, instructions = context.prompt_format, context.interface.instructions
    opening = prompt.opening(instructions)
    first, later = _around(prompt, instructions, 0), _around(prompt, instructions, 1)
    tools = TrainedChat(context).tools
    lines = []
    if first != ("", "") or later != ("", ""):
        lines = _loop(first, later)
    if opening:
        lines.append(f"{{%- set messages = {_literal(opening)} + messages -%}}")
    if tools:
        lines.append(f"{{%- if not tools %}}{{% set tools = {_literal(tools)} %}}{{% endif -%}}")
    if not lines:
        return []
    return ["{%- if messages and messages[0]['role'] != 'system' -%}", *lines, "{%- endif -%}"]


def _loop(first: tuple[str, str], later: tuple[str, str]) -> list[str]:
    """Jinja that puts text around the last message before each answer."""

    def worded(around: tuple[str, str]) -> str:
        return f"{_literal(around[0])} + message['content'] + {_literal(around[1])}"

    return [
        "{%- set worded = namespace(messages=[], answered=false) -%}",
        "{%- for message in messages -%}",
        "{%- if message['role'] == 'assistant' -%}",
        "{%- set worded.answered = true -%}",
        "{%- set worded.messages = worded.messages + [message] -%}",
        "{%- elif not loop.last and messages[loop.index]['role'] != 'assistant' -%}",
        "{%- set worded.messages = worded.messages + [message] -%}",
        "{%- else -%}",
        f"{{%- set text = ({worded(later)}) if worded.answered else (({worded(first)}) | trim) -%}}",
        "{%- if message['role'] == 'tool' -%}",
        "{%- set worded.messages = worded.messages + [{'role': 'tool', 'content': text, "
        "'tool_call_id': message['tool_call_id']}] -%}",
        "{%- else -%}",
        "{%- set worded.messages = worded.messages + [{'role': message['role'], 'content': text}] -%}",
        "{%- endif -%}",
        "{%- endif -%}",
        "{%- endfor -%}",
        "{%- set messages = worded.messages -%}",
    ]


def _around(prompt: Prompt, instructions: str, answered: int) -> tuple[str, str]:
    """The text before and after an observation that follows ``answered`` turns."""
    turns = [Turn.of(f"answer {n}", f"answer {n}").with_observation(f"seen {n}", None) for n in range(answered)]
    if turns:
        text = prompt.turn_text(instructions, turns, PLACEHOLDER, ())
    else:
        text = prompt.first_text(instructions, PLACEHOLDER, ())
    before, _, after = text.partition(PLACEHOLDER)
    return before, after


def _shows_the_same(context: Context, template: str) -> bool:
    """Whether a template writes sample conversations as training does."""
    tokenizer = copy.copy(context.tokenizer)
    tokenizer.chat_template = template
    trained = TrainedChat(context)
    date = chat_template.variables({})["strftime_now"]
    options: dict[str, Any] = {"add_generation_prompt": True, "strftime_now": date}
    tools = {"tools": trained.tools} if trained.tools else {}
    try:
        for sample in _SAMPLES:
            expected = _rendered(context, trained.messages(sample), {**options, **tools})
            if chat_template.render(tokenizer, sample, **options) != expected:
                return False
    except GagpoError:
        return False
    return True


def _rendered(context: Context, messages: Sequence[Message], options: dict[str, Any]) -> str:
    plain = [{key: value for key, value in message.items() if key != DATA} for message in messages]
    return chat_template.render(context.tokenizer, plain, **{**chat_template.variables(context.template), **options})


def _literal(value: Any) -> str:
    """A plain value as Jinja writes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
        return f"'{escaped}'"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(name)}: {_literal(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)
