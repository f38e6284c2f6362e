"""Responses with damaged tool calls."""

import random

import numpy as np
from pydantic import Field

from gagpo.agents.call_formats import CallFormat
from gagpo.agents.toolbox import Toolbox
from gagpo.envs.tools import Arguments, Tool, ToolCall
from gagpo.envs.tools.tool import ACT

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


def sound_call(box: Toolbox, rng: random.Random) -> ToolCall:
    """A call that fits the schema as far as a sample does."""
    return rng.choice(box.tools).sample(np.random.default_rng(rng.getrandbits(32)))


def hostile_response(form: CallFormat, box: Toolbox, rng: random.Random) -> str:
    """A response with calls that was damaged, or pieces of everything; one in five is left as it is."""
    type_name = rng.random()
    if type_name < 0.15:
        return "".join(rng.choice(_PIECES) for _ in range(rng.randint(0, 25)))
    if type_name < 0.17:
        return rng.choice(_PIECES) * rng.randint(1, 3000)
    text = form.write([sound_call(box, rng) for _ in range(rng.choice((1, 1, 1, 1, 1, 2, 3, 20)))])
    if rng.random() < 0.2:
        text = f"<think>I shall.</think>\n{text}"
    letters = list(text)
    for _ in range(0 if type_name > 0.8 else rng.randint(1, 4)):
        randrange = rng.randrange(len(letters) + 1)
        letters[randrange : randrange + rng.choice((0, 0, 1, 2, 20))] = rng.choice(_PIECES)
    return "".join(letters)
