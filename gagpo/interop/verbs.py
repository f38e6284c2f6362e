"""The actions of our worlds as verbs with arguments, for trainers and models that call tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gagpo.envs.errors import InvalidArgument


@dataclass(frozen=True)
class Verb:
    """A tool: ``template`` is the action it stands for, ``arguments`` says what each of its fields is."""

    name: str
    says: str
    template: str
    arguments: dict[str, str]

    def action(self, given: dict[str, Any]) -> str:
        """The action in text; InvalidArgument unless exactly the arguments of the verb are given."""
        if set(given) != set(self.arguments):
            raise InvalidArgument(f"{self.name} takes {', '.join(self.arguments) or 'no arguments'}")
        return self.template.format(**{name: str(value) for name, value in given.items()})


_OBJECT, _PLACE = "an object by name and number, as in mug 1", "a receptacle by name and number, as in shelf 2"


def _with(name: str, says: str, template: str, **arguments: str) -> Verb:
    return Verb(name, says, template, arguments)


_HOUSE = [
    _with("go_to", "Walk to a receptacle.", "go to {receptacle}", receptacle=_PLACE),
    _with(
        "take",
        "Take an object from a receptacle.",
        "take {object} from {receptacle}",
        object=_OBJECT,
        receptacle=_PLACE,
    ),
    _with("move", "Put a carried object down.", "move {object} to {receptacle}", object=_OBJECT, receptacle=_PLACE),
    _with("open", "Open a receptacle.", "open {receptacle}", receptacle=_PLACE),
    _with("close", "Close a receptacle.", "close {receptacle}", receptacle=_PLACE),
    _with("use", "Switch a lamp on.", "use {object}", object=_OBJECT),
    _with("heat", "Heat a carried object.", "heat {object} with {receptacle}", object=_OBJECT, receptacle=_PLACE),
    _with("clean", "Clean a carried object.", "clean {object} with {receptacle}", object=_OBJECT, receptacle=_PLACE),
    _with("cool", "Cool a carried object.", "cool {object} with {receptacle}", object=_OBJECT, receptacle=_PLACE),
    _with(
        "slice", "Slice an object with a carried knife.", "slice {object} with {knife}", object=_OBJECT, knife=_OBJECT
    ),
    _with("examine", "Look closely at something.", "examine {thing}", thing="an object or receptacle"),
    _with("look", "Look around.", "look"),
    _with("inventory", "See what is carried.", "inventory"),
]
_SHOP = [
    _with("search", "Look for products.", "search[{words}]", words="what to search for"),
    _with("click", "Press something on the page.", "click[{label}]", label="the text on it"),
]
_MATHS = [
    _with("calculate", "Compute exactly.", "<calc>{expression}</calc>", expression="such as (3 + 4) * 5 / 2"),
    _with("answer", "Give the final answer.", "\\boxed{{{value}}}", value="the answer alone"),
]
_DATABASE = [
    _with("query", "Run a query and see its rows.", "query: {sql}", sql="one SELECT statement"),
    _with("answer", "Give the final query.", "answer: {sql}", sql="one SELECT statement"),
]
VERBS: dict[str, list[Verb]] = {
    "gagpo/ALFWorld-v0": _HOUSE,
    "gagpo/WebShop-v0": _SHOP,
    "gagpo/WebShopBrowser-v0": _SHOP,
    "gagpo/Math-v0": _MATHS,
    "gagpo/SQL-v0": _DATABASE,
}
ACT = Verb("act", "Act in the world.", "{action}", {"action": "one command, in the world's own words"})


def verbs_of(env_id: str) -> list[Verb]:
    """The verbs of an environment; InvalidArgument when none are known (plain text actions always work)."""
    if env_id not in VERBS:
        raise InvalidArgument(
            f"no verbs are known of {env_id}; use verbs=False, one tool that takes the action as text"
        )
    return VERBS[env_id]


def as_method(verb: Verb, act: Callable[[Any, str], str]) -> Callable[..., str]:
    """A method called like the verb, with signature and docstring from which a tool schema can be made."""

    def method(self: Any, **given: Any) -> str:
        return act(self, verb.action(given))

    lines = [verb.says, "", *(["Args:"] if verb.arguments else [])]
    lines += [f"    {name}: {what}" for name, what in verb.arguments.items()]
    method.__name__ = method.__qualname__ = verb.name
    method.__doc__ = "\n".join([*lines, "", "Returns:", "    What is seen next."])
    method.__annotations__ = {**dict.fromkeys(verb.arguments, str), "return": str}
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str) for name in verb.arguments]
    method.__signature__ = inspect.Signature([own, *rest], return_annotation=str)  # type: ignore[attr-defined]
    return method
