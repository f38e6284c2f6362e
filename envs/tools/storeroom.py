"""``gagpo/Storeroom-v0``: questions about prices and shelves, answered with tools or with lines of text."""

from __future__ import annotations

import functools
import itertools
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import JsonValue

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Kwargs, MarkovKey, Outcome
from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.tools.call import CallError, ToolCall, quoted
from gagpo.envs.tools.env import ToolEnv
from gagpo.envs.tools.tool import Arguments, Tool, find_tool

ITEMS = (
    *("basket", "brush", "candle", "chair", "clock", "drum", "kettle", "ladder"),
    *("lamp", "mirror", "rope", "shovel", "stool", "teapot", "vase", "wheel"),
)
QUESTIONS = {
    "total": "What do the {} and the {} cost together?",
    "dearer": "Which costs more, the {} or the {}?",
    "shelf": "On which shelf is the dearer of the {} and the {}?",
}
Form = Literal["tools", "text"]
_TEST = 6  # every sixth pair of things belongs to the test split


class _Item(Arguments):
    item: str


class _Sum(Arguments):
    a: int
    b: int


class _Solution(Arguments):
    text: str


TOOLS = (
    Tool.of("price", "What it costs.", _Item),
    Tool.of("find", "On which shelf it is.", _Item),
    Tool.of("add", "The sum.", _Sum),
    Tool.of("answer", "A number or a thing.", _Solution),
)


class StoreroomEnv(ToolEnv):
    """Three kinds of questions about two of sixteen things, answered after two to four calls.

    Each seed draws new prices and shelves, so answers have to be looked up. The state consists of the question, the
    prices and shelves, and the facts found. Training and test never ask about the same pair of things.

    form: ``tools`` declares four tools, and the expert asks for both prices at once; ``text`` takes one line per turn
        instead (``price lamp``, ``add 3 5``).
    """

    markov_key: ClassVar[MarkovKey | None] = "state"

    def __init__(self, form: Form = "tools", max_turns: int = 8, **kwargs: Any):
        super().__init__(max_turns=max_turns, **kwargs)
        if form not in ("tools", "text"):
            raise InvalidArgument(f"form must be 'tools' or 'text', got {form!r:.80}", key="form")
        self.form = form
        self.tools = TOOLS if form == "tools" else ()
        task = "Look it up, then answer."
        lines = ", ".join(" ".join([tool.name, *tool.parameters["properties"]]) for tool in TOOLS)
        self.instructions = task if form == "tools" else f"{task} Each action is one line: {lines}."  # type: ignore[misc]

    @classmethod
    def cheap(cls, kwargs: Kwargs) -> bool:
        return True

    def tasks(self, split: str) -> TaskSet:
        if split not in self.splits:
            raise InvalidArgument(f"no split {split!r}", advice=f"choose one of {', '.join(self.splits)}")
        return _tasks(split)

    def begin(self, task: Task) -> Outcome:
        self.kind, first, second = task.id.split("-")
        self.items = (first, second)
        prices, shelves = self.np_random.integers(1, 10, (2, len(ITEMS))).tolist()
        self.prices = dict(zip(ITEMS, prices, strict=True))
        self.shelves = dict(zip(ITEMS, shelves, strict=True))
        if self.prices[first] == self.prices[second]:  # one must be dearer
            self.prices[first] = self.prices[first] % 9 + 1
        self.facts: list[str] = []
        return self._outcome(QUESTIONS[self.kind].format(first, second))

    def act(self, action: str) -> Outcome:
        if self.form == "tools":
            return super().act(action)
        try:
            call = _parse_line(action)
            return self.call(call.name, find_tool(TOOLS, call.name).fit(call.arguments))
        except CallError as error:
            return self.refuse(str(error))

    def call(self, tool: str, arguments: Any) -> Outcome:
        if tool == "answer":
            solved = arguments.text.strip().casefold() == self.solution
            text = "That is right." if solved else "That is not right."
            return self._outcome(text, reward=float(solved), terminated=True, success=solved)
        if tool == "add":
            fact = f"The sum is {arguments.a + arguments.b}."
        elif arguments.item not in self.prices:
            raise CallError(f"there is no {quoted(arguments.item)} in the storeroom")
        elif tool == "price":
            fact = f"The {arguments.item} costs {self.prices[arguments.item]}."
        else:
            fact = f"The {arguments.item} is on shelf {self.shelves[arguments.item]}."
        if fact not in self.facts:
            self.facts.append(fact)
        return self._outcome(fact)

    def refuse(self, reason: str) -> Outcome:
        return self._outcome(f"That cannot be done: {reason}.", valid=False)

    @property
    def solution(self) -> str:
        """The right answer."""
        first, second = self.items
        if self.kind == "total":
            return str(self.prices[first] + self.prices[second])
        dearer = max(self.items, key=self.prices.__getitem__)
        return dearer if self.kind == "dearer" else str(self.shelves[dearer])

    def expert_action(self) -> str | None:
        """Look up the missing facts, then answer; several calls are one per line."""
        items_without_price = [
            item for item in self.items if f"The {item} costs {self.prices[item]}." not in self.facts
        ]
        if items_without_price:
            return self._action(*(ToolCall("price", {"item": item}) for item in items_without_price))
        first_price, second_price = (self.prices[item] for item in self.items)
        if self.kind == "total" and f"The sum is {first_price + second_price}." not in self.facts:
            return self._action(ToolCall("add", {"a": first_price, "b": second_price}))
        dearer = max(self.items, key=self.prices.__getitem__)
        if self.kind == "shelf" and f"The {dearer} is on shelf {self.shelves[dearer]}." not in self.facts:
            return self._action(ToolCall("find", {"item": dearer}))
        return self._action(ToolCall("answer", {"text": self.solution}))

    def sample_action(self, rng: np.random.Generator) -> str:
        tool = TOOLS[int(rng.integers(len(TOOLS)))]
        call = tool.sample(rng)
        if "item" in call.arguments:
            call.arguments["item"] = ITEMS[int(rng.integers(len(ITEMS)))]
        if "text" in call.arguments:
            call.arguments["text"] = str(1 + int(rng.integers(18)))
        return self._action(call)

    def _action(self, *calls: ToolCall) -> str:
        if self.form == "tools":
            return "\n".join(call.text for call in calls)
        return " ".join([calls[0].name, *map(str, calls[0].arguments.values())])

    def _outcome(self, text: str, **fields: Any) -> Outcome:
        facts = " ".join(sorted(self.facts))
        # The state is the question, all prices and shelves, the facts the agent has looked up, and how it ended.
        end = f" {fields['success']}" if fields.get("terminated") else ""
        stock = "".join(map(str, (*self.prices.values(), *self.shelves.values())))
        return Outcome(text, state=f"{self.task.id if self.task else ''} {stock}: {facts}{end}", **fields)


@functools.cache
def _tasks(split: str) -> TaskSet:
    pairs = list(itertools.combinations(ITEMS, 2))
    split_pairs = [pair for number, pair in enumerate(pairs) if (number % _TEST == 0) == (split == "test")]
    ordered = [order for pair in split_pairs for order in (pair, pair[::-1])]
    names = sorted("-".join([question, *pair]) for question in QUESTIONS for pair in ordered)
    return TaskSet(split, [Task(name, split, name.partition("-")[0], digest=name) for name in names])


def _parse_line(line: str) -> ToolCall:
    """Parse a line of the text form: a tool's name followed by its arguments."""
    name, *tokens = line.split()[:4] or [""]
    names = list(find_tool(TOOLS, name).parameters["properties"])
    if len(tokens) != len(names):
        raise CallError(f"say {' '.join([name, *names])}")
    numbers = name == "add"
    values: list[JsonValue] = [int(x) if numbers and x.isascii() and x.isdigit() and len(x) < 4 else x for x in tokens]
    return ToolCall(name, dict(zip(names, values, strict=True)))
