"""The actions of our worlds as verbs with arguments, for trainers and models that call tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import TypeVar

from gagpo.base.errors import InvalidArgument


@dataclass(frozen=True)
class Verb:
    """A tool: ``template`` is the action it stands for, whose fields are its arguments."""

    name: str
    description: str
    template: str

    @property
    def arguments(self) -> dict[str, str]:
        """What each argument is, by name."""
        fields = (field for _, field, _, _ in Formatter().parse(self.template) if field)
        return {field: ARGUMENTS[field] for field in fields}

    def action(self, given: Mapping[str, object]) -> str:
        """The action in text; InvalidArgument unless exactly the arguments of the verb are given."""
        if set(given) != set(self.arguments):
            raise InvalidArgument(f"{self.name} takes {', '.join(self.arguments) or 'no arguments'}")
        return self.template.format(**{name: str(value) for name, value in given.items()})


ARGUMENTS = {
    "action": "one command, in the world's own words",
    "expression": "such as (3 + 4) * 5 / 2",
    "knife": "an object by name and number, as in mug 1",
    "label": "the text on it",
    "object": "an object by name and number, as in mug 1",
    "receptacle": "a receptacle by name and number, as in shelf 2",
    "sql": "one SELECT statement",
    "thing": "an object or receptacle",
    "value": "the answer alone",
    "words": "what to search for",
}
_HOUSE = [
    Verb("go_to", "Walk to a receptacle.", "go to {receptacle}"),
    Verb("take", "Take an object from a receptacle.", "take {object} from {receptacle}"),
    Verb("move", "Put a carried object down.", "move {object} to {receptacle}"),
    Verb("open", "Open a receptacle.", "open {receptacle}"),
    Verb("close", "Close a receptacle.", "close {receptacle}"),
    Verb("use", "Switch a lamp on.", "use {object}"),
    Verb("heat", "Heat a carried object.", "heat {object} with {receptacle}"),
    Verb("clean", "Clean a carried object.", "clean {object} with {receptacle}"),
    Verb("cool", "Cool a carried object.", "cool {object} with {receptacle}"),
    Verb("slice", "Slice an object with a carried knife.", "slice {object} with {knife}"),
    Verb("examine", "Look closely at something.", "examine {thing}"),
    Verb("look", "Look around.", "look"),
    Verb("inventory", "See what is carried.", "inventory"),
]
_SHOP = [
    Verb("search", "Look for products.", "search[{words}]"),
    Verb("click", "Press something on the page.", "click[{label}]"),
]
VERBS = {
    "gagpo/ALFWorld-v0": _HOUSE,
    "gagpo/WebShop-v0": _SHOP,
    "gagpo/WebShopBrowser-v0": _SHOP,
    "gagpo/Math-v0": [
        Verb("calculate", "Compute exactly.", "<calc>{expression}</calc>"),
        Verb("answer", "Give the final answer.", "\\boxed{{{value}}}"),
    ],
    "gagpo/SQL-v0": [
        Verb("query", "Run a query and see its rows.", "query: {sql}"),
        Verb("answer", "Give the final query.", "answer: {sql}"),
    ],
}
ACT = Verb("act", "Act in the world.", "{action}")
Player = TypeVar("Player")


def verbs_of(env_id: str) -> list[Verb]:
    """The verbs of an environment; InvalidArgument when none are known (plain text actions always work)."""
    if env_id not in VERBS:
        raise InvalidArgument(
            f"no verbs are known of {env_id}; use verbs=False, one tool that takes the action as text"
        )
    return VERBS[env_id]


def as_method(verb: Verb, act: Callable[[Player, str], str]) -> Callable[..., str]:
    """A method called like the verb, with signature and docstring from which a tool schema can be made."""

    def method(self: Player, **given: object) -> str:
        return act(self, verb.action(given))

    lines = [verb.description, "", *(["Args:"] if verb.arguments else [])]
    lines += [f"    {name}: {what}" for name, what in verb.arguments.items()]
    method.__name__ = method.__qualname__ = verb.name
    method.__doc__ = "\n".join([*lines, "", "Returns:", "    What is seen next."])
    method.__annotations__ = {**dict.fromkeys(verb.arguments, str), "return": str}
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str) for name in verb.arguments]
    method.__signature__ = inspect.Signature([own, *rest], return_annotation=str)  # type: ignore[attr-defined]
    return method
