"""The files to read from the example's loop to the loss, and the functions that a turn enters on the way.

python .ci/reading_path.py           write the table of docs/how-it-works.md
python .ci/reading_path.py --walk    print the functions that are entered, from an observation to the loss
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how-it-works.md"
PATH = {
    "examples/loop.py": "the whole algorithm: sample, credit, optimiser steps, evaluation",
    "agents/rollout.py": "many episodes at once: who waits for whom",
    "agents/agent.py": "one of three outcomes for each state, and the turn of a response",
    "agents/context.py": "what is asked of the model, and what is read from its response",
    "agents/history.py": "the prompt's token ids: a conversation that grows, or a window",
    "gagpo/data/turn.py": "the record of a turn; each stage returns a new one",
    "gagpo/credit/assign.py": "from turns to one advantage per turn",
    "gagpo/credit/gagpo.py": "GAGPO's advantage",
    "gagpo/data/rows.py": "turns that extend each other become one row",
    "gagpo/learning/packing.py": "rows become mini-batches and micro-batches",
    "gagpo/model/logprobs.py": "log-probabilities in bounded memory",
    "gagpo/objectives/policy.py": "the loss",
}
"""By file, in the order of reading: what it is about."""

Stop = tuple[str, str]  # a file and a function


def table() -> str:
    """The files in order, with their lines."""
    lines = [len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in PATH]
    rows = ["| | file | lines | about |", "|---|---|---|---|"]
    for number, (file, subject) in enumerate(PATH.items(), 1):
        rows.append(f"| {number} | `{file}` | {lines[number - 1]} | {subject} |")
    return "\n".join([*rows, f"| | sum | {sum(lines):,} | |"])


def with_table(page: str) -> str:
    """The page with the table of the files as they are."""
    return re.sub(r"(?<=<!-- path -->\n).*?(?=\n<!-- /path -->)", lambda _: table(), page, flags=re.DOTALL)


@contextmanager
def entered(stops: list[Stop]) -> Iterator[None]:
    """Add the functions of the path that are called from another of its files, each once, in the order of the calls.

    What a file off the path calls is not followed: it is one call of the file that calls it.
    """
    files = {str((ROOT / file).resolve()): file for file in PATH}
    callers: list[str | None] = [""]  # the file of each call under way; None off the path

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            file = files.get(str(Path(code.co_filename).resolve())) if callers[-1] is not None else None
            stop = (file or "", code.co_qualname)
            if file not in (None, callers[-1]) and "<" not in code.co_name and stop not in stops:
                stops.append(stop)
            callers.append(file)
        elif event == "return" and len(callers) > 1:
            callers.pop()

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def walk() -> list[Stop]:
    """The functions that are entered from the observations of a tiny corridor to the loss."""
    import torch

    from gagpo.agents.agent import EpisodeState
    from gagpo.agents.rollout import rollout
    from gagpo.agents.setup import language_agent, make_engine, make_env
    from gagpo.data import Episode
    from gagpo.envs.pool.opening import open_pool
    from gagpo.sft.small_model import ModelShape, build

    loop = example()
    corridor = "gagpo.envs.testing:gagpo-test/Corridor-v0"
    model, tokenizer = build(ModelShape(layers=1, width=16, heads=2, feed_forward=16), ["go left right"], seed=0)
    agent = language_agent(make_engine("transformers", model, tokenizer), make_env(corridor), loop.Sampling(1.0, 4))
    with open_pool(corridor, {"max_turns": 2}, workers=0) as pool:
        episodes, _ = rollout(agent, pool, loop.group_jobs(["door-01", "door-03"], 2, seed=1))
    for episode in episodes:  # without different rewards there is no advantage, and no loss
        episode.turns[-1] = episode.turns[-1].with_result(float(episode.sample), True)
    stops: list[Stop] = []
    with entered(stops):
        agent.decide([EpisodeState(0, Episode("door-01"), "You stand at 1.")])
        loop.learn(0, episodes, model, torch.optim.SGD(model.parameters(), lr=0.1))
    return stops


def example() -> ModuleType:
    """The module of the example, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("loop", ROOT / "examples" / "loop.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def visits(stops: Sequence[Stop]) -> list[str]:
    """The files in the order in which they are opened; stops in a row in one file are one visit."""
    files = [file for file, _ in stops]
    return [file for previous, file in zip(["", *files], files, strict=False) if file != previous]


def main() -> None:
    parser = argparse.ArgumentParser(description="The reading path.")
    parser.add_argument("--walk", action="store_true", help="print the functions that are entered")
    if parser.parse_args().walk:
        sys.path.insert(0, str(ROOT))
        for number, (file, function) in enumerate(walk(), 1):
            print(f"{number:3} {file:28} {function}")
    else:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
