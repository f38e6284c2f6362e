"""Mend programs with a fault, and write small ones; hidden inputs judge them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gagpo.envs.terminal.exercise import Exercise, Final
from gagpo.envs.terminal.families.family import family
from gagpo.envs.terminal.families.words import SplitWords
from gagpo.envs.terminal.tree import file


@dataclass(frozen=True)
class PythonExercise:
    """A function with a faulty line.

    body: lines below ``def``; ``right`` stands in one of them, and ``fault`` replaces it.
    value: computes the result, independently of the body.
    draw: draws arguments.
    """

    arguments: str
    purpose: str
    body: str
    right: str
    fault: str
    value: Callable[..., Any]
    draw: Callable[[random.Random], list[Any]]


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randint(-9, 9) for _ in range(rng.randint(1, 8))]


def _factorial(n: int) -> int:
    return n * _factorial(n - 1) if n else 1


def _draw_lists(rng: random.Random) -> list[Any]:
    return [_numbers(rng)]


def _draw_pair(rng: random.Random) -> list[Any]:
    return [rng.randint(2, 60), rng.randint(2, 60)]


def _draw_range(rng: random.Random) -> list[Any]:
    low = rng.randint(0, 9)
    return [low, low + rng.randint(1, 20)]


FUNCTIONS = (
    PythonExercise(
        "values", "the sum of the even values", "return sum(v for v in values if v % 2 == 0)", "== 0", "== 1",
        lambda values: sum(v for v in values if not v & 1), _draw_lists,
    ),
    PythonExercise(
        "values", "the largest value",
        "best = values[0]\nfor v in values:\n    if v > best:\n        best = v\nreturn best",
        "v > best", "v < best", max, _draw_lists,
    ),
    PythonExercise(
        "values", "the values in reverse order", "return values[::-1]", "[::-1]", "[::-2]",
        lambda values: list(reversed(values)), _draw_lists,
    ),
    PythonExercise(
        "low, high", "the sum of all numbers from low to high, both included", "return sum(range(low, high + 1))",
        "high + 1", "high - 1", lambda low, high: (high - low + 1) * (low + high) // 2, _draw_range,
    ),
    PythonExercise(
        "text", "the number of vowels (aeiou) in a text", "return sum(text.count(c) for c in 'aeiou')",
        "'aeiou'", "'aeio'", lambda text: sum(c in "aeiou" for c in text),
        lambda rng: ["".join(rng.choices("abcdeiouu", k=9))],
    ),
    PythonExercise(
        "text", "whether a text reads the same backwards", "return text == text[::-1]", "== text", "!= text",
        lambda text: list(text) == list(reversed(text)), lambda rng: [rng.choice(["abba", "abc", "x", "noon", "on"])],
    ),
    PythonExercise(
        "values", "the number of different values", "return len(set(values))", "len(set(values))", "len(values)",
        lambda values: sum(v not in values[:i] for i, v in enumerate(values)),
        lambda rng: [[rng.randint(0, 3) for _ in range(6)]],
    ),
    PythonExercise(
        "n", "n factorial", "result = 1\nfor i in range(1, n + 1):\n    result *= i\nreturn result",
        "range(1, n + 1)", "range(1, n)", _factorial, lambda rng: [rng.randint(2, 9)],
    ),
    PythonExercise(
        "a, b", "the greatest common divisor", "while b:\n    a, b = b, a % b\nreturn a", "a % b", "a // b",
        lambda a, b: max(d for d in range(1, a + 1) if a % d == b % d == 0), _draw_pair,
    ),
    PythonExercise(
        "values", "the running sums of the values",
        "total, sums = 0, []\nfor v in values:\n    total += v\n    sums.append(total)\nreturn sums",
        "total += v", "total = v", lambda values: [sum(values[: i + 1]) for i in range(len(values))], _draw_lists,
    ),
)  # fmt: skip

_DRIVER = """
import importlib.util, json, sys
from json import dumps
name, function, cases = json.loads(sys.argv[1])
module = importlib.util.spec_from_file_location("tested", f"/app/{name}.py")
loaded = importlib.util.module_from_spec(module)
module.loader.exec_module(loaded)
print("\\n" + dumps([getattr(loaded, function)(*case) for case in cases]))
"""


def _results(final: Final, module: str, function: str, cases: list[list[Any]]) -> object:
    """What a function of the tree returns for the cases; what it prints itself comes before.

    The driver knows the inputs only, so code that takes it over gains nothing.
    """
    order = json.dumps([module, function, cases])
    result = final.run(f"python3 -I -S -B -c '{_DRIVER}' '{order}'")
    try:
        return json.loads(result.output.text().strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        return None


@family("mend-python", 2)
def mend_python(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    module, name, test, other = words.stems(4)
    function = rng.choice(FUNCTIONS)
    cases = [function.draw(rng) for _ in range(20)]
    values = [function.value(*case) for case in cases]
    faulty = function.body.replace(function.right, function.fault, 1)
    code = _source(name, function, faulty)
    if level == 2:
        code = f"def {other}(x):\n    return x\n\n\n{code}"
    example_arguments = function.draw(rng)
    call = f"{name}({', '.join(map(repr, example_arguments))})"
    tests = f"from {module} import {name}\n\nassert {call} == {function.value(*example_arguments)!r}\nprint('passed')\n"
    mended = code.replace(faulty.replace("\n", "\n    "), function.body.replace("\n", "\n    "))
    tree = {f"{module}.py": file(code), f"{test}.py": file(tests)}
    command = f"cat > {module}.py <<'EOF'\n{mended}EOF"
    quick = f"def {name}({function.arguments}):\n    return {function.value(*example_arguments)!r}\n"
    return Exercise(
        f"The function {name} in {module}.py has a fault: it should return {function.purpose}. Mend it. "
        f"{test}.py has one "
        "test; hidden tests decide.",
        tree,
        lambda final: _results(final, module, name, cases) == values,
        (f"cat {module}.py", _substitution(function, f"{module}.py"), f"python3 {test}.py"),
        (command,),
        (f"cat > {module}.py <<'EOF'\n{quick}EOF",),
    )


def _source(name: str, function: PythonExercise, body: str) -> str:
    return f"def {name}({function.arguments}):\n    " + body.replace("\n", "\n    ") + "\n"


def _substitution(function: PythonExercise, path: str) -> str:
    """A sed command that puts the right text for the fault; neither has a character that sed would need escaped."""
    fault = function.fault.replace("[", "\\[").replace("]", "\\]").replace("*", "\\*")
    return f'sed -i "s|{fault}|{function.right}|" {path}'


_SUMS: dict[int, tuple[str, Callable[[list[int]], int], str, str]] = {
    1: ("the sum", lambda numbers: sum(numbers), "s=0; for n in \"$@\"; do s=$((s + n)); done; echo $s",
        "s=0; while [ $# -gt 0 ]; do s=$(expr $s + $1); shift; done; echo $s"),
    2: ("the largest", lambda numbers: max(numbers), "m=$1; for n in \"$@\"; do if [ $n -gt $m ]; then "
                                                     "m=$n; fi; done; echo $m",
        "printf '%s\\n' \"$@\" | sort -n | tail -1"),
    3: ("the number of even ones", lambda numbers: sum(n % 2 == 0 for n in numbers),
        "c=0; for n in \"$@\"; do if [ $((n % 2)) -eq 0 ]; then c=$((c + 1)); fi; done; echo $c",
        "printf '%s\\n' \"$@\" | grep -c '[02468]$' || true"),
}  # fmt: skip


@family("write-script", 3)
def write_script(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name = words.stem()
    purpose, compute, code, other = _SUMS[level]
    cases = [[rng.randint(1, 99) for _ in range(rng.randint(2, 6))] for _ in range(6)]
    expected = "".join(f"{compute(case)}\n" for case in cases)
    example_arguments = cases[0]
    script = "#!/bin/sh\n"

    def check(final: Final) -> bool:
        node = final.tree.get(f"{name}.sh")
        if node is None or node.kind != "f" or not node.mode & 0o100:
            return False
        calls = "\n".join(f"./{name}.sh {' '.join(map(str, case))}" for case in cases)
        return final.run(calls).output.text() == expected

    def written(text: str) -> str:
        return f"cat > {name}.sh <<'EOF'\n{script}{text}\nEOF"

    example = f"./{name}.sh {' '.join(map(str, example_arguments))}"
    return Exercise(
        f"Write an executable shell script {name}.sh that prints {purpose} of its arguments, which are whole numbers; "
        f"{example} prints {compute(example_arguments)}.",
        {},
        check,
        (written(code), f"chmod +x {name}.sh", example),
        (f"printf '%s\\n' '#!/bin/bash' > {name}.sh; cat >> {name}.sh <<'EOF'\n{other}\nEOF\nchmod 755 {name}.sh",),
        (written(f"echo {compute(example_arguments)}"), f"chmod +x {name}.sh"),
    )
