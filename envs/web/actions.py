"""Actions of an agent on a page, as text and as tools. They are untrusted text of a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from gagpo.base.nearest import nearest
from gagpo.envs.tools import Arguments, CallError, Tool, read_call
from gagpo.envs.tools.call import quoted
from gagpo.envs.tools.tool import find_tool

Name = Literal["click", "type", "select", "press", "scroll", "back"]
LONGEST_TEXT = 2_000  # characters to type
_NUMBERED = re.compile(r"(click|select)\[(\d{1,6})\]")
_TYPE = re.compile(r"type\[(\d{1,6})\](?: (.*))?", re.DOTALL)
_NAMED = re.compile(r"(press|scroll)\[([^\[\]\n]{1,20})\]")
_UNTYPEABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

KEYS: dict[str, tuple[str, int, str]] = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "Space": (" ", 32, " "),
    "Backspace": ("Backspace", 8, ""),
    "Delete": ("Delete", 46, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
    "PageUp": ("PageUp", 33, ""),
    "PageDown": ("PageDown", 34, ""),
}
"""The keys that can be pressed: the name in events, the code, and the text they enter."""

VIRTUAL_KEYS: dict[str, int] = {
    **{letter: ord(letter.upper()) for letter in "abcdefghijklmnopqrstuvwxyz0123456789 "},
    **dict(zip(")!@#$%^&*(", range(48, 58), strict=True)),
    **{letter: 186 + place // 2 for place, letter in enumerate(";:=+,<-_.>/?`~")},
    **{letter: 219 + place // 2 for place, letter in enumerate("[{\\|]}'\"")},
}
"""The codes of keys that enter a letter, on a keyboard of the United States; other letters have none."""

INSTRUCTIONS = (
    "You use a web page. It is shown as a list; what can be used has a number. Each action is one line: click[3], "
    "type[4] words (replaces the text of a field), select[7] (chooses an option), press[Enter], scroll[down], "
    "scroll[up] or back."
)


@dataclass(frozen=True)
class Command:
    """An action that can be understood.

    number: of the line that it is done to; 0 for none.
    text: the words, the key or the direction.

    >>> str(Command("type", 4, "red shirt")), str(Command("click", 3)), str(Command("back"))
    ('type[4] red shirt', 'click[3]', 'back')
    """

    name: Name
    number: int = 0
    text: str = ""

    def __str__(self) -> str:
        if self.name == "back":
            return "back"
        if self.name == "type":
            return f"type[{self.number}] {self.text}"
        return f"{self.name}[{self.number or self.text}]"

    @property
    def call(self) -> dict[str, Any]:
        """The arguments of the tool with this name."""
        by_name: dict[str, dict[str, Any]] = {
            "click": {"element": self.number},
            "type": {"element": self.number, "text": self.text},
            "select": {"option": self.number},
            "press": {"key": self.text},
            "scroll": {"direction": self.text},
            "back": {},
        }
        return by_name[self.name]


def parse(action: str, element: str = "N") -> Command:
    """Read a line of text.

    element: how the message writes what an action is done to.

    Raises:
        CallError: it is no action; the message is for the agent.
    """
    action = action.strip()
    if action == "back":
        return Command("back")
    if match := _NUMBERED.fullmatch(action):
        return Command("click" if match[1] == "click" else "select", int(match[2]))
    if match := _TYPE.fullmatch(action):
        return typed(int(match[1]), match[2] or "")
    if match := _NAMED.fullmatch(action):
        return pressed(match[2]) if match[1] == "press" else scrolled(match[2])
    raise CallError(
        f"{quoted(action)} is not an action",
        advice=(
            f"write click[{element}], type[{element}] words, select[{element}], "
            "press[KEY], scroll[down], scroll[up] or back"
        ),
    )


def typed(number: int, text: str) -> Command:
    """The command to type; raises CallError for a text that is too long."""
    if len(text) > LONGEST_TEXT:
        raise CallError(f"at most {LONGEST_TEXT:,} characters can be typed at once (got {len(text):,})")
    return Command("type", number, _UNTYPEABLE.sub("", text))


def pressed(key: str) -> Command:
    """The command to press a key; raises CallError for an unknown one."""
    by_lower = {name.lower(): name for name in KEYS}
    if key.lower() in by_lower:
        return Command("press", text=by_lower[key.lower()])
    if len(key) == 1 and key.isascii() and key.isprintable() and key != " ":
        return Command("press", text=key)
    near = nearest(key, list(KEYS))
    raise CallError(f"there is no key {quoted(key)}", advice=f"nearest: {', '.join(near)}" if near else "such as Enter")


def scrolled(direction: str) -> Command:
    """The command to scroll; raises CallError for an unknown direction."""
    if direction not in ("up", "down"):
        raise CallError(f"scroll[{direction}] is not an action", advice="write scroll[down] or scroll[up]")
    return Command("scroll", text=direction)


class _Click(Arguments):
    element: int = Field(ge=1, description="number of the element")


class _Type(Arguments):
    element: int = Field(ge=1, description="number of the field")
    text: str = Field(max_length=LONGEST_TEXT, description="replaces the field's text")


class _Select(Arguments):
    option: int = Field(ge=1, description="number of the option")


class _Press(Arguments):
    key: str = Field(description="such as Enter or Tab")


class _Scroll(Arguments):
    direction: Literal["up", "down"]


class _Back(Arguments):
    pass


TOOLS = (
    Tool.of("click", "Click an element of the page.", _Click),
    Tool.of("type", "Type into a field.", _Type),
    Tool.of("select", "Choose an option of a list.", _Select),
    Tool.of("press", "Press a key.", _Press),
    Tool.of("scroll", "Scroll the page.", _Scroll),
    Tool.of("back", "Go back to the previous page.", _Back),
)


def parse_call(action: str) -> Command:
    """Read a tool call.

    Raises:
        CallError: it is no call of one of :data:`TOOLS`.
    """
    call = read_call(action)
    arguments = find_tool(TOOLS, call.name).fit(call.arguments)
    if call.name == "click":
        return Command("click", arguments.element)
    if call.name == "select":
        return Command("select", arguments.option)
    if call.name == "type":
        return typed(arguments.element, arguments.text)
    if call.name == "press":
        return pressed(arguments.key)
    return scrolled(arguments.direction) if call.name == "scroll" else Command("back")
