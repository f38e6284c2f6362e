"""Hostile tool calls: whatever a model writes as a call is made, or answered with what is wrong; nothing breaks."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
from pydantic import Field

from gagpo.agents.calls.formats import FORMATS, CallFormat
from gagpo.agents.calls.toolbox import Toolbox
from gagpo.agents.episodes import Turn
from gagpo.envs.base import Outcome as Answer
from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.tools import Arguments, CallError, Tool, ToolCall
from gagpo.envs.tools.tool import ACT
from gagpo.envs.tools.world import ToolEnv
from tests.hard.outcome import FAULT, Outcome, Tally

_PIECES = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("{", "}", "[", "]", '"', '\\"', ":", ",", "\\", "null", "NaN", "-Infinity", "1e999", "9" * 400, "-0", "0x1"),
    *(
        '"name"',
        '"arguments"',
        '"parameters"',
        '{"name": "act"',
        '"name": "act", ',
        '"__class__"',
        "\\ud800",
        "\\u0000",
    ),
    *("\ud800", "\x00", "\r\n", "\u2028", "\u202e", "İ", "👩‍🚀", "١٢", "[" * 500, '{"a":' * 500, "]" * 500, "}" * 500),
    *("; ", "'", "`", "../../etc/passwd", "__import__('os').abort()", "%s%n", "{0.__class__}", "<script>"),
)


class _Search(Arguments):
    words: list[str] = Field(max_length=4)
    most: int = Field(default=3, ge=1, le=10)
    price: float | None = None


class _Nested(Arguments):
    search: _Search
    again: bool = False


TOOLS = (Tool.of("search", "Look for words.", _Search), Tool.of("nested", "Look again.", _Nested), ACT)


class ShelfEnv(ToolEnv):
    """Answers every call of its tools with the call."""

    tools = TOOLS

    def tasks(self, split: str) -> TaskSet:
        return TaskSet(split, [Task("shelf", split)])

    def begin(self, task: Task) -> Answer:
        return Answer("A shelf.")

    def call(self, tool: str, arguments: Arguments) -> Answer:
        if tool == "act" and arguments.model_dump()["command"] == "refuse":
            raise CallError("refused")
        return Answer(f"{tool}: {arguments.model_dump_json()}")


def calls(folder: Path, count: int, seed: int, only: int | None = None) -> list[Tally]:
    """Read ``count`` mutated responses in each format, and have a world carry out what is left of them."""
    del folder
    tallies = []
    for form in FORMATS.values():
        tally, begin = Tally(f"hostile tool calls: {form.name}"), time.monotonic()
        boxes, world = (Toolbox((), form), Toolbox(TOOLS, form)), ShelfEnv(max_turns=10**9)
        world.reset(seed=seed)
        for case in range(count) if only is None else [only]:
            rng = random.Random(f"{seed}/{form.name}/{case}")
            box = boxes[case % 2]
            response = hostile_response(form, box, rng)
            try:
                turn = Turn.calling(response, box.read(response))
                while (action := turn.upcoming) is not None:  # as a rollout does it
                    observation, _, _, _, info = world.step(action)
                    turn.finish(0.0, info["valid"])
                    turn.answer(observation).encode()
                tally.counts["fine" if turn.valid else "refused"] += 1
            except Exception as error:  # which is what nothing here may raise
                tally.add(f"calls --seed {seed} --only {case}: {response[:100]!a}", Outcome(FAULT, repr(error)))
        tally.seconds = time.monotonic() - begin
        tallies.append(tally)
    return tallies


def sound_call(box: Toolbox, rng: random.Random) -> ToolCall:
    """A call that fits the schema as far as a sample does."""
    return rng.choice(box.tools).sample(np.random.default_rng(rng.getrandbits(32)))


def hostile_response(form: CallFormat, box: Toolbox, rng: random.Random) -> str:
    """A response with calls that was damaged, or pieces of everything; one in five is left as it is."""
    kind = rng.random()
    if kind < 0.15:
        return "".join(rng.choice(_PIECES) for _ in range(rng.randint(0, 25)))
    if kind < 0.17:
        return rng.choice(_PIECES) * rng.randint(1, 3000)
    text = form.write([sound_call(box, rng) for _ in range(rng.choice((1, 1, 1, 1, 1, 2, 3, 20)))])
    if rng.random() < 0.2:
        text = f"<think>I shall.</think>\n{text}"
    letters = list(text)
    for _ in range(0 if kind > 0.8 else rng.randint(1, 4)):
        place = rng.randrange(len(letters) + 1)
        letters[place : place + rng.choice((0, 0, 1, 2, 20))] = rng.choice(_PIECES)
    return "".join(letters)
