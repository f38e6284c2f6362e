"""The published files of GSM8K: both forms of naming them, and solutions that its authors judged.

The files are looked for in ``$GAGPO_TEST_DATA`` and in ``shared/data`` next to the checkout.
"""

import json
import os
from pathlib import Path

import pytest

from gagpo.envs.math.env import MathEnv
from gagpo.envs.math.solutions import NO_CALCULATION, UNREADABLE
from gagpo.envs.math.sources import load
from gagpo.envs.math.verify.verifier import Verifier

_CHECKOUT = Path(__file__).resolve().parents[3]
_PLACES = [Path(os.environ["GAGPO_TEST_DATA"])] if "GAGPO_TEST_DATA" in os.environ else []
_PLACES += [parent / "shared" / "data" for parent in _CHECKOUT.parents]
FOLDER = next((place / "gsm8k" for place in _PLACES if (place / "gsm8k").is_dir()), None)
pytestmark = pytest.mark.skipif(FOLDER is None, reason="needs GSM8K's files in $GAGPO_TEST_DATA/gsm8k")


@pytest.mark.parametrize(("split", "count"), [("train", 7473), ("test", 1319)])
def test_a_bare_file_and_the_preset_read_the_same_golds(split, count):
    path = FOLDER / f"{split}.jsonl"
    bare, preset = (load({"test": source}).problems["test"] for source in (f"{path}", f"gsm8k:{path}"))
    golds = [problem.answer for problem in bare.values()]
    assert len(golds) == count and golds == [problem.answer for problem in preset.values()]
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert golds == [row["answer"].rpartition("#### ")[2].strip() for row in rows]


def test_nearly_all_training_solutions_can_be_demonstrated():
    env = MathEnv(data={"train": f"gsm8k:{FOLDER / 'train.jsonl'}"}, max_turns=10, expert_mode="solution")
    counts = env.usable_solutions("train")
    assert (counts.usable, counts.total) == (7376, 7473)
    assert counts.left_out == {NO_CALCULATION: 95, UNREADABLE: 2}


@pytest.mark.slow
def test_solutions_of_models_are_judged_as_the_authors_judged_them():
    verifier = Verifier()
    judged = 0
    for line in (FOLDER / "example_model_solutions.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        gold = row["ground_truth"].rpartition("\nA: ")[2]
        solutions = [value for value in row.values() if isinstance(value, dict) and "solution" in value]
        for solution in solutions:
            verdict = verifier.verify(gold, solution["solution"])
            assert verdict.correct is solution["is_correct"], (gold, solution["solution"])
            judged += verdict.reason != "no_answer"
    assert judged == 5265
