"""What a replay buffer keeps and returns, and that a resumed run continues with it bit-identically."""

from dataclasses import replace

import numpy as np
import pytest

from gagpo.agents.episodes import Episode, Turn
from gagpo.credit import Credit
from gagpo.learning.batch import build_rows
from gagpo.objectives.replay import Replay, decay
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.checkpoint import CheckpointError
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.replay import ReplayBuffer, joined
from gagpo.training.trainer import Trainer, train


def episode(task, turns=1):
    made = Episode(task)
    for number in range(turns):
        ids = np.arange(3 + number, dtype=np.int32)
        made.turns.append(Turn("", "", "", prompt_ids=ids, response_ids=ids[:2], logprobs=np.zeros(2, np.float32)))
    return made


def names(episodes):
    return [one.task for one in episodes]


def test_what_is_good_is_kept_while_it_is_young_and_there_is_room():
    buffer = ReplayBuffer(Replay(threshold=0.5, size=3, age=2))
    for iteration in range(3):
        made = [episode(f"{iteration}{letter}") for letter in "abc"]
        buffer.add(made, np.array([1.0, 0.5, 0.6]), np.array([3.0, 0.0, 2.0]), iteration)
    assert names(buffer.episodes) == ["1c", "2a", "2c"] and buffer.born == [1, 2, 2]
    buffer.add([episode("3a")], np.array([0.0]), np.array([0.0]), 3)
    assert names(buffer.episodes) == ["2a", "2c"]


def test_returns_are_compared_with_the_median_of_group_means():
    """As SPEAR's code does: the median of returns would be 0 here, and let the mediocre episode in."""
    buffer = ReplayBuffer(Replay(baseline=6, episodes=2))
    played = [replace(episode(c), group=group) for c, group in zip("abcdef", (0, 0, 1, 1, 2, 2), strict=True)]
    buffer.add(played, np.ones(6), np.array([4.0, 0.0, 1.0, 0.0, 3.0, 0.0]), 0)
    chosen, above = buffer.chosen()  # group means 2, 0.5, 1.5: their median is 1.5
    assert names(chosen) == ["e", "a"] and above.tolist() == [1.5, 2.5]
    buffer.add([episode("g")] * 4, -np.ones(4), np.array([9.0] * 4), 1)  # 9 9 9 9 1.5 1.5
    assert buffer.chosen()[0] == []


def test_coefficients_follow_their_schedules():
    assert [decay("linear", i / 4) for i in range(6)] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert decay("cosine", 0.0) == decay("constant", 1.0) == 1.0 and decay("cosine", 1.0) == pytest.approx(0.0)
    replay = Replay(coefficient=2.0, rise=4)
    assert [replay.at(i) for i in range(6)] == pytest.approx(
        [2 * (1 - np.cos(np.pi * min(i / 4, 1))) / 2 for i in range(6)]
    )
    assert Replay(rise=0).at(0) == 1.0


def test_a_state_is_the_buffer():
    buffer, other = ReplayBuffer(Replay()), ReplayBuffer(Replay())
    buffer.add([episode("a", 3), episode("b")], np.ones(2), np.array([1.0, 0.3]), 7)
    other.restore(buffer.state())
    assert (other.born, other.returns, other.baseline) == (buffer.born, buffer.returns, buffer.baseline)
    for one, same in zip(buffer.episodes, other.episodes, strict=True):
        assert one.record(tokens=True) == same.record(tokens=True)


@pytest.mark.parametrize("level", ["turn", "token"])
def test_replayed_episodes_stand_behind_the_batch_with_numbers_of_their_own(level):
    fresh, again = [episode("a", 2)], [episode("b"), episode("c", 2)]
    tokens_N = np.array([2, 2])
    credit = Credit(np.full(2 if level == "turn" else 4, 0.5), tokens_N, level)
    rows, together = joined(build_rows(fresh), credit, again, np.array([1.0, 2.0]))
    turns = [0.5, 0.5, 1.0, 2.0, 2.0]
    assert together.per_token().tolist() == np.repeat(turns, 2).tolist()
    assert np.concatenate([row.token_K for row in rows]).tolist() == list(range(10))
    assert np.concatenate([row.turn_K for row in rows]).tolist() == np.repeat(range(5), 2).tolist()
    assert sorted({row.group for row in rows}) == [0, 1, 2]


SPEAR = {"preset": "dr_grpo", "replay": {"rise": 0, "episodes": 8}}


def ends(folder):
    saved = checkpoints.latest(folder.path / "checkpoints").path
    return (saved / "model" / "model.safetensors").read_bytes()


def test_a_run_with_a_replay_buffer_is_resumed_bit_for_bit(corridor, tmp_path):
    config = corridor(algorithm=SPEAR, training={"iterations": 3}, evaluation={"splits": []})
    whole = RunFolder.create(tmp_path / "whole", load(config))
    train(whole, quiet=True)
    parts = RunFolder.create(tmp_path / "parts", load(config, ["training.iterations=1"]))
    train(parts, quiet=True)
    again = RunFolder.open(parts.path)
    again.change(["training.iterations=3"])
    train(again, quiet=True)
    assert ends(whole) == ends(parts)
    assert [row["replayed_episodes"] for row in whole.metrics()] == [
        row["replayed_episodes"] for row in again.metrics()
    ]
    assert whole.metrics()[-1]["replayed_episodes"] > 0


def test_a_damaged_buffer_is_named(corridor, tmp_path):
    config = corridor(algorithm=SPEAR, training={"iterations": 1}, evaluation={"splits": []})
    folder = RunFolder.create(tmp_path / "run", load(config))
    train(folder, quiet=True)
    saved = checkpoints.latest(folder.path / "checkpoints")
    for damage in (b"", b"PK\x03\x04 not an archive", ReplayBuffer(Replay()).state()[:-40]):
        (saved.path / checkpoints.REPLAY).write_bytes(damage)
        with pytest.raises(CheckpointError, match=r"replay.npz cannot be read"):
            saved.load_replay(ReplayBuffer(Replay()).restore)


def test_a_replayed_episode_that_is_not_finite_is_skipped_and_kept(corridor, tmp_path):
    training = {"iterations": 3, "minibatches": 1, "max_skipped": 3}
    config = corridor(algorithm=SPEAR, training=training, evaluation={"splits": []})
    folder = RunFolder.create(tmp_path / "run", load(config))
    trainer = Trainer(folder, quiet=True)
    buffer = trainer.learner.replay
    chosen = buffer.chosen

    def poisoned():
        episodes, above = chosen()
        for one in episodes[:1]:
            one.turns[0].logprobs = np.full(len(one.turns[0].response_ids), np.nan, np.float32)
        return episodes, above

    buffer.chosen = poisoned
    trainer.run()
    skipped = [row["skipped_steps"] for row in folder.metrics()]
    assert sum(skipped) > 0 and len(skipped) == 3
    kept = list((folder.path / "episodes").glob("nonfinite-*.jsonl"))
    played = len(trainer.recorder.folder.episodes("train-0002").read_text().splitlines())
    assert kept and all(0 < len(path.read_text().splitlines()) < played / 4 for path in kept)  # the poisoned ones
