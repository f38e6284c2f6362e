"""A model's chat template, rendered with errors that a user can act on."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gagpo.base.errors import InvalidArgument, first_line
from gagpo.base.nearest import nearest

DATE = "2026-01-01"

PLACEHOLDER = "\u241e"
"""Stands for a message while a template is probed; no template alters this character."""


WITH_PROMPT = "with_prompt"
"""Variable of an exported model's template: whether it adds the prompt of training. gagpo adds it itself."""


class TemplateFailed(InvalidArgument):
    """A chat template that cannot render a conversation."""


class ChatTemplate:
    """A model's chat template with fixed options.

    Every conversation of a run is rendered by one such object, because an option that differed between two turns would
    make the later prompt no extension of the earlier one.

    options: for the template, such as ``add_generation_prompt``; see :func:`variables`.
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any]):
        self.tokenizer = tokenizer
        self.options = dict(options)

    def render(self, chat: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The conversation as the template writes it. Raises: TemplateFailed naming the model."""
        try:
            return str(self.tokenizer.apply_chat_template(list(chat), tokenize=False, **{**self.options, **options}))
        except Exception as error:  # a template is a file of the model: it may fail in any way
            raise fault(self.tokenizer, f"fails: {first_line(error)}") from None

    def begin(self, chat: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """A conversation from its first message, with ``tools`` as chat templates take them."""
        options = {"tools": tools} if tools else {}
        try:
            return self.render(chat, **options)
        except TemplateFailed:
            # Some families refuse the role system. Nothing in a template says so, therefore it is tried.
            if chat[0]["role"] != "system":
                raise
        return self.render(without_system(chat), **options)

    @property
    def shows_tools(self) -> bool:
        """Whether the template has a place for tools; one that is never given any need not have it."""
        return False


def render(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    """The conversation as the template writes it. Raises: TemplateFailed naming the model."""
    return ChatTemplate(tokenizer, options).render(messages)


def without_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The conversation with its system message's text in the first user message, for templates without that role."""
    system, *later = messages
    if not later or later[0]["role"] != "user":
        return [{**system, "role": "user"}, *later]
    merged = {"role": "user", "content": f"{system['content']}\n\n{later[0]['content']}"}
    return [merged, *later[1:]]


def fault(tokenizer: Any, problem: str) -> TemplateFailed:
    """The error about a template."""
    where = f"the chat template of {getattr(tokenizer, 'name_or_path', '') or 'this model'}"
    return TemplateFailed(problem, where=where, advice="correct chat_template.jinja in the model's folder")


def variables(options: Mapping[str, Any]) -> dict[str, Any]:
    """Variables for a chat template, with the date under the names that public templates use."""
    values = dict(options)
    text = str(values.pop("date", DATE))
    try:
        date = datetime.date.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"context.template.date must be YYYY-MM-DD, got {text!r}", key="context.template.date"
        ) from None
    return {"date_string": date.strftime("%d %b %Y"), "strftime_now": date.strftime, WITH_PROMPT: False, **values}


def require_used(tokenizer: Any, options: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for a variable that no tag of the template names: Jinja would silently ignore it."""
    template = getattr(tokenizer, "chat_template", None) or ""
    texts = template.values() if isinstance(template, Mapping) else [template]
    tags = [tag for text in texts for tag in re.findall(r"\{[{%].*?[}%]\}", text, re.DOTALL)]
    names = {word for tag in tags for word in re.findall(r"[^\W\d]\w*", tag)}
    for name in options:
        if name not in {*names, "date"}:
            model = getattr(tokenizer, "name_or_path", "") or "this model"
            similar = nearest(name, sorted(names), count=1, cutoff=0.7)
            advice = f"nearest: {similar[0]}" if similar else "remove it"
            raise InvalidArgument(
                f"the chat template of {model} has no variable {name!r}",
                key="context.template",
                advice=advice,
                where="context.template",
            )
