"""A process that generates the problems of one family and scores answers to them, one request after another.

Its owner starts it with a fixed seed for the hashes of strings, because some families depend on the order of sets. It
limits its own CPU time for each answer, and its owner kills it at a deadline.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import numpy as np
import reasoning_gym

from gagpo.base.child import Pipe
from gagpo.envs.math.verify.worker import OutOfTime, cpu_limit
from gagpo.envs.reasoning_gym.evaluation import restrict
from gagpo.envs.reasoning_gym.grading import is_nonfinite, is_right

_CACHED = 512  # problems: the episodes of a group share one, and some take seconds to generate
_NONSENSE = {"propositional_logic": "(P ∧ ¬P)"}
"""An answer that is wrong in every problem of a family, by default ``_NO_ANSWER``.

A contradiction follows from premises that contradict each other, and so does every other statement.
"""
_NO_ANSWER = "no such answer"
_EXAMPLES = ("example_answer", "example_correct_answer", "possible_answer")
"""Where families without a single right answer put one, in their metadata."""

Entry = dict[str, Any]  # a problem as reasoning-gym describes it


class ProblemFamily:
    """The problems of a family with one configuration.

    name: of the family.
    config: fields of its configuration, ``seed`` and ``size`` included.
    """

    def __init__(self, name: str, config: dict[str, Any]):
        self.name = name
        self.dataset = reasoning_gym.create_dataset(name, **config)
        self._entries: OrderedDict[int, Entry] = OrderedDict()

    def problem(self, index: int) -> tuple[str, str | None]:
        """The question, and an answer that scores 1 if one is known."""
        entry = self._entry(index)
        return str(entry["question"]), entry["expert_answer"]

    def score(self, index: int, answer: str) -> float:
        """The score of ``answer``, from 0 to 1.

        The family's verifier can give less than the full score. It gives the full score only to an answer of the right
        value. If it also accepts nonsense for this problem, only the family's own answer is right.
        """
        entry = self._entry(index)
        score = self._score(answer, entry)
        expert_answer = entry["expert_answer"] or ""
        if answer.strip().casefold() == expert_answer.strip().casefold():
            return score
        # Only where the answer contains numbers: "nan" is also a word.
        if re.search(r"\d", expert_answer) and is_nonfinite(answer):
            return 0.0
        nonsense = _NONSENSE.get(self.name, _NO_ANSWER)
        if score >= 1 and not (is_right(self.name, answer, entry) and self._score(nonsense, entry) < 1):
            return 0.0
        return score

    def _score(self, answer: str, entry: Entry) -> float:
        try:
            return min(1.0, max(0.0, float(self.dataset.score_answer(answer, entry))))
        except Exception:  # a verifier may raise anything for an answer that it cannot read
            return 0.0

    def _entry(self, index: int) -> Entry:
        if index not in self._entries:
            # A few families draw from the global generators.
            random.seed(index)
            np.random.seed(index % 2**32)
            entry = self.dataset[index]
            self._entries[index] = {**entry, "expert_answer": self._expert_answer(entry)}
            if len(self._entries) > _CACHED:
                self._entries.popitem(last=False)
        self._entries.move_to_end(index)
        return self._entries[index]

    def _expert_answer(self, entry: Entry) -> str | None:
        examples = (entry["metadata"].get(name) for name in _EXAMPLES)
        for answer in (entry["answer"], *examples):
            text = json.dumps(answer) if isinstance(answer, dict | list) else answer
            if isinstance(text, str) and self._score(text, entry) >= 1:
                return text
        return None


def answer_request(family: ProblemFamily, request: tuple[Any, ...]) -> tuple[Any, ...]:
    """The answer to ``("problem", index)`` or ``("score", index, answer, seconds)``."""
    operation, index, *arguments = request
    try:
        if operation == "problem":
            return ("ok", *family.problem(index))
        answer, seconds = arguments
        family.problem(index)  # generated before the time of the answer runs
        with cpu_limit(seconds):
            return "ok", family.score(index, answer)
    except (OutOfTime, MemoryError, RecursionError):
        return ("timeout",)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def main(pipe: Pipe, name: str, config: str) -> None:
    """Answer requests until the other side closes the ``pipe``; with an invalid configuration, each with the reason."""
    devnull = os.open(os.devnull, os.O_WRONLY)  # discards what the verifiers print
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    restrict()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a verifier cannot write files
    pipe.send("ready")
    family = None
    config_error = ""
    with suppress(EOFError, OSError):
        while True:
            request = pipe.receive()
            if family is None and not config_error:
                try:
                    family = ProblemFamily(name, json.loads(config))
                except Exception as error:  # a configuration is checked by assertions and by errors of any kind
                    config_error = " ".join(str(error).split())[:300] or type(error).__name__
            pipe.send(("invalid", config_error) if family is None else answer_request(family, request))
