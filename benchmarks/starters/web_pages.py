"""Pages drawn at random in the words of ``gagpo/Web-v0``: from them a small model learns to find and to copy.

No browser is involved. Each exercise is an instruction, a page and the right action (``form=names``). Labels are random
words and strings, so that nothing but reading the page helps. None of them is a page of MiniWoB++.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from gagpo.data import Episode, Turn
from gagpo.envs.web.actions import Command
from gagpo.envs.web.naming import write_named
from gagpo.envs.web.page import Line, WebPage

_SYLLABLES = (
    "ba be bi co cu da de di do el en er es fa fe ga ge ha he ia in is ka ke la le li lo lu ma me mi mo na ne ni no nu "
    "or os pa pe po qui ra re ri ro sa se si so st ta te ti to tr tu ul um un ur us va ve vi vo wa xi ya za"
)
SYLLABLES = tuple(_SYLLABLES.split())
CHARACTERS = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
ENDINGS = ("", "", "", "", ".", ",")
ORDINALS = ("1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th")
SENDING = ("Submit", "OK", "Login", "Save", "Search", "Send", "Next", "Go", "submit", "Sign in", "Continue", "Done")
FIELD_NAMES = ("username", "password", "email", "city", "name", "title", "tt", "q", "date", "street", "to", "code")
NOUNS = {"button": "button", "clickable": "link", "link": "link", "tab": "tab"}

Rng = np.random.Generator
T = TypeVar("T")


@dataclass
class Page:
    """Lines from top to bottom; usable ones are numbered in order."""

    lines: list[Line] = field(default_factory=list)
    usable: int = 0

    def add(
        self,
        role: str,
        name: str = "",
        value: str | None = None,
        states: Sequence[str] = (),
        depth: int = 0,
        usable: bool = True,
    ) -> int:
        """Append a line; returns its number, 0 for a line that cannot be used."""
        self.usable += usable
        number = self.usable if usable else 0
        self.lines.append(Line(number, depth, role, name, value, tuple(states), 0))
        return number

    def add_text(self, text: str, depth: int = 0) -> None:
        self.add("text", text, depth=depth, usable=False)

    def focus(self, number: int) -> None:
        """Mark the line with this number as focused."""
        self.lines = [
            replace(line, states=(*line.states, "focused")) if number and line.number == number else line
            for line in self.lines
        ]

    @property
    def web_page(self) -> WebPage:
        return WebPage("/", tuple(self.lines), (), (False, False), "")

    def __str__(self) -> str:
        return self.web_page.text("full", 4000)


@dataclass(frozen=True)
class Exercise:
    """An instruction, a page and the right answer: an action of ``form=names``, or several in a line."""

    instruction: str
    page: Page
    answer: str

    @classmethod
    def of(cls, instruction: str, page: Page, command: Command) -> Exercise:
        """The exercise whose answer is one command."""
        return cls(instruction, page, write_named(command, page.web_page))

    def episode(self, number: int) -> Episode:
        """The exercise as an episode of one turn."""
        turn = Turn.of(self.answer, self.answer).with_observation(f"{self.instruction}\n\n{self.page}", None)
        return Episode(f"page-{number}", turns=[turn], success=True, outcome="terminated")


# Words ----------------------------------------------------------------------------------------------------------------


def draw(rng: Rng, options: Sequence[T]) -> T:
    return options[int(rng.integers(len(options)))]


def word(rng: Rng) -> str:
    """A word of random syllables, capitalised or not."""
    text = "".join(draw(rng, SYLLABLES) for _ in range(int(rng.integers(1, 5))))
    return draw(rng, (text, text, text.capitalize(), text.capitalize(), text.upper()))


def code(rng: Rng) -> str:
    """A string of random characters."""
    return "".join(draw(rng, CHARACTERS) for _ in range(int(rng.integers(1, 8))))


def label(rng: Rng) -> str:
    """What something on a page is called: a word, a string of characters, or a few words."""
    kind = int(rng.integers(8))
    if kind < 4:
        return word(rng) + draw(rng, ENDINGS)
    if kind < 7:
        return code(rng)
    return " ".join(word(rng) for _ in range(int(rng.integers(2, 4))))


def labels(rng: Rng, count: int) -> list[str]:
    """Different labels."""
    names: dict[str, None] = {}
    while len(names) < count:
        names[label(rng)] = None
    return list(names)


def sentence(rng: Rng) -> str:
    return " ".join(word(rng).lower() for _ in range(int(rng.integers(1, 9)))) + draw(rng, ENDINGS)


def listed(names: Sequence[str], rng: Rng) -> str:
    """The names as a list in a sentence."""
    if len(names) < 2 or rng.random() < 0.5:
        return ", ".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def maybe_text(rng: Rng, page: Page, depth: int = 0, share: float = 0.3) -> None:
    if rng.random() < share:
        page.add_text(sentence(rng), depth)


# Exercises ------------------------------------------------------------------------------------------------------------


def press(rng: Rng) -> Exercise:
    """Click what has a given label, among other things."""
    page = Page()
    names = labels(rng, int(rng.integers(2, 10)))
    target = int(rng.integers(len(names)))
    role = draw(rng, ("button", "clickable", "link"))
    depth = 0
    if rng.random() < 0.2:
        page.add("dialog", usable=False)
        depth = 1
    number = 0
    for place, name in enumerate(names):
        maybe_text(rng, page, depth)
        if rng.random() < 0.15:
            page.add("input", draw(rng, ("", draw(rng, FIELD_NAMES))), draw(rng, ("", label(rng))), depth=depth)
        same = place == target or rng.random() < 0.8
        added = page.add(role if same else draw(rng, ("button", "clickable")), name, depth=depth)
        number = added if place == target else number
    maybe_text(rng, page, depth)
    quoted = draw(rng, (f'"{names[target]}"', f'"{names[target]}"', names[target]))
    noun = NOUNS[role]
    instruction = draw(
        rng,
        (
            f"Click on the {quoted} {noun}.",
            f"Click on the {noun} {quoted}.",
            f"Press the {noun} labeled {quoted}.",
            f"Click {noun} {quoted}.",
            f"Find {quoted} and click on it.",
            f"Open {quoted}.",
            f"Choose {quoted} in the list.",
        ),
    )
    if rng.random() < 0.2:
        page.focus(int(rng.integers(1, page.usable + 1)))
    return Exercise.of(instruction, page, Command("click", number))


def tick(rng: Rng) -> Exercise:
    """Choose several boxes or one circle, then send the form; some may be chosen already."""
    several = rng.random() < 0.6
    names = labels(rng, int(rng.integers(2, 9)))
    targets = sorted(rng.permutation(len(names))[: int(rng.integers(0, len(names))) if several else 1])
    done = targets[: int(rng.integers(len(targets) + 1))]
    send = draw(rng, SENDING)
    page = Page()
    numbers = []
    maybe_text(rng, page)
    for place, name in enumerate(names):
        states = ("checked" if several else "selected",) if place in done else ()
        numbers.append(page.add("checkbox" if several else "radio", name, states=states))
        maybe_text(rng, page, share=0.05)
    button = page.add("button", send)
    if done:
        page.focus(numbers[done[-1]])
    ordered = [names[i] for i in rng.permutation(targets)]
    phrase = listed(ordered, rng) if ordered else "nothing"
    instruction = draw(
        rng,
        (
            f"Select {phrase} and click {send}.",
            f"Choose {phrase}, then press {send}.",
            f'Mark {phrase} and press "{send}".',
        ),
    )
    remaining = targets[len(done) :]
    return Exercise.of(instruction, page, Command("click", numbers[remaining[0]] if remaining else button))


def fill(rng: Rng) -> Exercise:
    """Type given words into fields, then send the form; some may be filled already."""
    count = int(rng.integers(1, 4))
    names = [FIELD_NAMES[i] for i in rng.permutation(len(FIELD_NAMES))[:count]]
    values = labels(rng, count)
    done = int(rng.integers(count + 1))
    send = draw(rng, SENDING)
    page = Page()
    numbers = []
    titled = rng.random() < 0.5
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        if titled:
            page.add_text(name.capitalize())
        shown = name if rng.random() < 0.8 or not titled else ""
        numbers.append(page.add("input", shown, value if place < done else ""))
    if rng.random() < 0.1:
        page.add("button", draw(rng, ("Cancel", "Back", "Help")))
    button = page.add("button", send)
    if done:
        page.focus(numbers[done - 1])
    pairs = list(zip(names, values, strict=True))
    if rng.random() < 0.3:
        pairs = [pairs[i] for i in rng.permutation(count)]
    if count == 1:
        phrase = draw(rng, (f'"{values[0]}" into the text field', f'"{values[0]}" in the field', f'"{values[0]}"'))
    else:
        phrase = " and ".join(f'the {name} "{value}"' for name, value in pairs)
    instruction = draw(
        rng,
        (
            f"Enter {phrase} and press {send}.",
            f"Type {phrase}, then click {send}.",
            f"Enter {phrase} into the form and press {send}.",
        ),
    )
    command = Command("type", numbers[done], values[done]) if done < count else Command("click", button)
    return Exercise.of(instruction, page, command)


def count_off(rng: Rng) -> Exercise:
    """Click the n-th of its kind."""
    role = draw(rng, ("input", "button", "clickable", "checkbox"))
    total = int(rng.integers(2, 8))
    target = int(rng.integers(total))
    page = Page()
    numbers = []
    for place in range(total):
        if rng.random() < 0.15:
            page.add(draw(rng, tuple(r for r in ("button", "clickable", "tab") if r != role)), label(rng))
        maybe_text(rng, page, share=0.15)
        if role == "input":
            numbers.append(page.add("input", f"tt{place + 1}" if rng.random() < 0.5 else "", ""))
        else:
            numbers.append(page.add(role, label(rng)))
    noun = {"input": "input textbox", "clickable": "link"}.get(role, role)
    instruction = draw(
        rng,
        (f"Focus into the {ORDINALS[target]} {noun}.", f"Click the {ORDINALS[target]} {noun}."),
    )
    return Exercise.of(instruction, page, Command("click", numbers[target]))


def search_tabs(rng: Rng) -> Exercise:
    """Find a link behind one of several tabs: click it, or open the next tab."""
    total = int(rng.integers(2, 6))
    current = int(rng.integers(total))
    title = draw(rng, ("Tab #{}", "Part {}", "Section #{}"))
    page = Page()
    page.add("tablist", usable=False)
    tabs = []
    for place in range(total):
        states = ["selected", "expanded"] if place == current else ["collapsed"]
        tabs.append(page.add("tab", title.format(place + 1), states=states, depth=1))
    if current or rng.random() < 0.2:
        page.focus(tabs[current])
    page.add("tabpanel", title.format(current + 1), usable=False)
    names = labels(rng, int(rng.integers(2, 11)))
    here = current == total - 1 or rng.random() < 0.5
    target = int(rng.integers(1, len(names)))
    number = 0
    for place, name in enumerate(names):
        if place == 0 and not here:
            continue
        maybe_text(rng, page, depth=1)
        added = page.add("clickable", name, depth=1)
        number = added if place == target else number
    phrase = names[target] if here else names[0]
    instruction = draw(
        rng,
        (
            f'Switch between the tabs to find and click on the link "{phrase}".',
            f'Look behind the tabs for "{phrase}" and open it.',
        ),
    )
    return Exercise.of(instruction, page, Command("click", number if here else tabs[current + 1]))


def type_all(rng: Rng) -> Exercise:
    """Fill all fields at once. No environment takes several actions in a line, but a long answer has more to copy."""
    count = int(rng.integers(2, 7))
    names = [FIELD_NAMES[i] for i in rng.permutation(len(FIELD_NAMES))[:count]]
    values = dict(zip(names, labels(rng, count), strict=True))
    page = Page()
    for name in names:
        page.add("input", name, "")
    actions = [f"type[{name}] {values[name]}" for name in names]
    order = [names[i] for i in rng.permutation(count)]
    phrase = " and ".join(f'{name} "{values[name]}"' for name in order)
    return Exercise(f"All of: {phrase}", page, " ".join(actions))


EXERCISES: tuple[Callable[[Rng], Exercise], ...] = (
    *(press, press, tick, tick, fill, fill, count_off, search_tabs),
    *(type_all, type_all),
)


def exercises(seed: int) -> Iterator[Exercise]:
    """Exercises without end, drawn from ``seed``."""
    rng = np.random.default_rng([seed, 47])
    while True:
        yield draw(rng, EXERCISES)(rng)
