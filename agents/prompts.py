"""Prompts: how observations become messages, and how the action is read from a response. Each is a YAML file.

Prompts are data and not code: they are stored with a run's settings, and a digest of their content is part of what
makes two results comparable.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, Field, ValidationError, model_validator

from gagpo.agents import parsing, templates
from gagpo.base.core_schema import read_mapping
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options, explain

SHIPPED = Path(__file__).parents[1] / "configs" / "prompts"
"""The prompts that come with the package."""

FIELDS = {
    "system": ("instructions",),
    "first": ("instructions", "observation", "actions"),
    "turn": ("instructions", "observation", "actions", "task", "done"),
    "window": ("instructions", "observation", "actions", "task", "done", "turns"),
}
"""The fields of each template, described in docs/your-model.md."""

Message = dict[str, Any]  # of a chat
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


class TurnText(Protocol):
    """An earlier turn, as a template sees it."""

    @property
    def observation(self) -> str: ...

    @property
    def response(self) -> str: ...

    @property
    def action(self) -> str: ...


_OBSERVATION = "{{ observation }}{% if actions %}\nAdmissible actions: {{ actions | join(', ') }}.{% endif %}"
_WINDOW = (
    "{% if done > turns | length %}{{ task }}\n{% endif %}"
    "{% for turn in turns %}{{ turn.observation }}\n> {{ turn.action }}\n{% endfor %}" + _OBSERVATION
)


class Example(Options):
    """One message of an example conversation."""

    role: Literal["user", "assistant"] = Field(description="who says it; both in turn, the assistant last")
    content: str = Field(description="its text; not a template")


def _action(value: str | dict[str, str]) -> str | dict[str, str]:
    """Check how the action is read."""
    if isinstance(value, str):
        if value not in ("line", "whole", "tools"):
            expected = "line, whole, tools, {tag: NAME} or {json: KEY}"
            raise InvalidArgument(f"must be {expected}, got {value!r:.80}", key="action")
        return value
    action, name = next(iter(value.items()), ("", ""))
    if len(value) != 1 or action not in ("tag", "json") or not name:
        raise InvalidArgument(f"must be written {{tag: NAME}} or {{json: KEY}}, got {value!r:.80}", key="action")
    if action == "tag" and (not _TAG.fullmatch(name) or name.lower() == "think"):
        raise InvalidArgument(f"the tag must be a name such as action, and not think, got {name!r:.80}", key="action")
    return value


class Prompt(Options):
    """How a model is prompted, and how its action is read."""

    name: str = Field("", description="a label for results; by default the file's name")
    system: str = Field("", description="template of the system message")
    first: str = Field(_OBSERVATION, description="template of the first user message of a full conversation")
    turn: str = Field(_OBSERVATION, description="template of later user messages, and of the last tool answer")
    window: str = Field(_WINDOW, description="template of the only user message, with a numeric history")
    examples: list[Example] = Field([], description="messages (role, content) before the first user message")
    stop: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        [], max_length=16, description="strings that end a response, as an end token does; they belong to it"
    )
    action: Annotated[str | dict[str, str], AfterValidator(_action)] = Field(
        "line", description="how the action is read: line, whole, tools, {tag: NAME} or {json: KEY}"
    )

    @model_validator(mode="after")
    def _templates_that_work(self) -> Prompt:
        """Check the templates, and fill them once."""
        for key, fields in FIELDS.items():
            try:
                templates.check(getattr(self, key), fields, "" if key == "system" else "observation")
            except InvalidArgument as error:
                raise InvalidArgument(f"{key}: {error.placed}", key=key, advice=error.advice) from None
        turns = [_Sample(), _Sample()]
        self.opening("")
        self.first_text("", "", ["look"])
        self.turn_text("", turns, "", ["look"])
        self.window_text("", [*turns, _Sample()], "", ["look"], 2)
        roles = [example.role for example in self.examples]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise InvalidArgument(
                "examples: messages of user and assistant must alternate, and end with assistant", key="examples"
            )
        return self

    @property
    def kind(self) -> str:
        """How the action is read: line, tag, json, whole or tools."""
        return self.action if isinstance(self.action, str) else next(iter(self.action))

    @property
    def key(self) -> str:
        """The tag or JSON key of the action, else ''."""
        return "" if isinstance(self.action, str) else next(iter(self.action.values()))

    @property
    def calls(self) -> bool:
        """Whether actions are tool calls; messages after the first are then their answers."""
        return self.kind == "tools"

    @property
    def label(self) -> str:
        """Name and digest of the content; results are comparable only under equal ones."""
        content = json.dumps(self.model_dump(mode="json", exclude={"name"}), sort_keys=True)
        return f"{self.name or 'own'} {hashlib.sha256(content.encode()).hexdigest()[:8]}"

    @property
    def asks_for_thoughts(self) -> bool:
        """Whether the text of a template asks for ``<think>``; examples show what they show."""
        return any("<think>" in getattr(self, key) for key in FIELDS)

    def read(self, response: str, multiline: bool = False) -> str | None:
        """The action of a response without tool calls, see :func:`gagpo.agents.parsing.parse`."""
        return parsing.parse(response, self.kind, self.key, multiline)

    def opening(self, instructions: str) -> list[Message]:
        """The messages before the first user message: the system message, if there is one, and the examples."""
        opening: list[Message] = [example.model_dump() for example in self.examples]
        if system := templates.fill(self.system, self.name, "system", instructions=instructions):
            opening.insert(0, {"role": "system", "content": system})
        return opening

    def first_text(self, instructions: str, observation: str, actions: Sequence[str]) -> str:
        """The first user message of a full conversation."""
        fields = {"instructions": instructions, "observation": observation, "actions": actions}
        return templates.fill(self.first, self.name, "first", **fields).strip()

    def turn_text(self, instructions: str, turns: Sequence[TurnText], observation: str, actions: Sequence[str]) -> str:
        """The user message that shows ``observation`` after ``turns`` of a full conversation."""
        task = turns[0].observation if turns else observation
        fields = {"instructions": instructions, "observation": observation, "actions": actions}
        return templates.fill(self.turn, self.name, "turn", task=task, done=len(turns), **fields)

    def window_text(
        self, instructions: str, turns: Sequence[TurnText], observation: str, actions: Sequence[str], width: int
    ) -> str:
        """The user message that shows the task, the last ``width`` turns and ``observation``."""
        task = turns[0].observation if turns else observation
        begin = max(0, len(turns) - width)
        window = [
            {"number": number, "observation": turn.observation, "response": turn.response, "action": turn.action}
            for number, turn in enumerate(turns[begin:], begin + 1)
        ]
        fields = {"instructions": instructions, "observation": observation, "actions": actions, "turns": window}
        return templates.fill(self.window, self.name, "window", task=task, done=len(turns), **fields).strip()


class _Sample:
    """A turn to try templates on."""

    observation = response = action = ""


def shipped_prompts() -> dict[str, Path]:
    """The prompts that come with the package, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def find_prompt(name: str) -> Prompt:
    """The prompt of a shipped name or of a YAML file.

    Raises: InvalidArgument naming the file, the key and what to type.
    """
    shipped = shipped_prompts()
    if name in shipped:
        return _read(shipped[name])
    path = Path(name)
    if not path.is_file():
        raise InvalidArgument(
            f"unknown prompt {name!r:.80}", advice=f"choose one of {', '.join(shipped)}, or a YAML file"
        )
    return _read(path)


def _read(path: Path) -> Prompt:
    values = read_mapping(path, keys=", ".join(Prompt.model_fields))
    return prompt_of({"name": path.stem, **values}, str(path))


def prompt_of(values: Mapping[str, object], where: str) -> Prompt:
    """The prompt with these keys. where: their origin, for errors."""
    try:
        return Prompt.model_validate(dict(values))
    except ValidationError as error:
        raise explain(error, Prompt.model_fields, where) from None
