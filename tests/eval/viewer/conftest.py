"""A run with groups to look at, and a browser to look with."""

import json
from pathlib import Path

import pytest

from tests.browsers import chromium

HOSTILE = (
    "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\"'&\u202e\x1b[31m]]>-->"
)


def write_groups(folder: Path, iterations: int = 3, groups: int = 4, tries: int = 4, text: str = "") -> Path:
    """Tries that part in the second turn: every other one goes left, which is the better way where there is one."""
    (folder / "episodes").mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as metrics:
        for i in range(1, iterations + 1):
            row = {
                "iteration": i,
                "success_rate": 0.2 + 0.1 * i,
                "repeated_states": 0.9,
                "zero_advantage_groups": 0.1,
                "mean_turns": 3,
            }
            metrics.write(json.dumps(row) + "\n")
            records = [
                record(f"task {group}{text}", group, sample, f"kind {group % 2}{text}", text)
                for group in range(groups)
                for sample in range(tries)
            ]
            lines = "".join(json.dumps(item) + "\n" for item in records)
            (folder / "episodes" / f"train-{i:04d}.jsonl").write_text(lines)
    for stage in ("before", "after"):
        tested = [record(f"task {group}{text}", group, stage == "before", "kind", text, False) for group in range(2)]
        lines = "".join(json.dumps(item) + "\n" for item in tested)
        (folder / "episodes" / f"{stage}-test.jsonl").write_text(lines)
    return folder


def record(task, group, sample, kind, text, trained=True):
    remaining = sample % 2 == 0
    disputed = (group, sample) == (1, 2)  # goes the good way at a high reward and fails all the same
    won = remaining and group % 3 != 2 and not disputed
    turns = []
    path = [("start", "look"), ("door", "left" if remaining else "right"), ("hall" if remaining else "cellar", "wait")]
    for number, (saw, did) in enumerate(path):
        turn = {"observation": saw + text, "response": f"{did}{text}", "action": did + text, "reward": 0.0}
        if trained:
            tokens = {"prompt": 9, "text": [did, "</s>"], "logprob": [-0.5, -2], "ratio": [1, 1.2]}
            tokens["gate_weight"] = [1, 0]
            turn["sent"] = f"<|user|>{saw}{text}<|assistant|>"
            turn |= {"advantage": 0.5 - number, "value": 0.25, "group_state": number, "tokens": tokens}
        turns.append(turn)
    turns[-1]["reward"] = float(won)
    if disputed:
        turns[0]["reward"], turns[1]["reward"] = -1.0, 1.0
    retained = {"kept": group != 3} if trained else {}
    outcome = "terminated" if won else "truncated"
    facts = {"task": task, "task_type": kind, "group": group, "sample": int(sample), "success": won}
    return {**facts, "outcome": outcome, "reward": float(won), **retained, "turns": turns}


@pytest.fixture
def make_groups():
    return write_groups


@pytest.fixture
def hostile():
    return HOSTILE


@pytest.fixture
def browser():
    """Headless Chromium that can reach this machine alone."""
    with chromium("127.0.0.1") as driver:
        yield driver
