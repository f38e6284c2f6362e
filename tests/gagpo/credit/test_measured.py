"""Credits that read the policy's entropy or probabilities."""

import copy

import numpy as np
import pytest
import torch

from gagpo.credit import CREDITS, BadTurns, Turns, advantages
from gagpo.learning.learner import Learner
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import Trainer
from tests.rejections import rejects


@pytest.mark.parametrize("name", ["empg", "optimal_token_baseline"])
def test_the_trainer_measures_what_the_credit_reads(corridor, tmp_path, monkeypatch, name):
    """Against probabilities of the whole vocabulary from the model's own eager pass, turn by turn."""
    config = corridor(
        algorithm={"preset": name, "kl": {"coefficient": 0.0}}, training={"iterations": 1}, evaluation={"splits": []}
    )
    trainer = Trainer(RunFolder.create(tmp_path / "run", load(config)), quiet=True)
    model = copy.deepcopy(trainer.learner.model)
    model.set_attn_implementation("eager")
    observed, measured = [], Learner._measured

    def watched(self, turns, rows):
        observed.append((measured(self, turns, rows), rows))
        return observed[0][0]

    monkeypatch.setattr(Learner, "_measured", watched)
    trainer.run()
    ((turns, rows),) = observed
    entropy, energy = np.zeros(turns.num_turns), np.zeros(turns.num_tokens)
    for row in rows:
        with torch.no_grad():
            logits = model(torch.as_tensor(row.ids[None].astype(np.int64))).logits[0, row.position_K - 1].double()
        p = torch.softmax(logits, -1)
        reference = p.gather(-1, torch.as_tensor(row.ids[row.position_K]).long()[:, None])[:, 0]
        np.add.at(entropy, row.turn_K, -(p * p.log()).sum(-1).numpy() / turns.tokens_N[row.turn_K])
        energy[row.token_K] = (1 - 2 * reference + (p * p).sum(-1)).numpy()
    if name == "empg":
        assert turns.entropy_N == pytest.approx(entropy, abs=1e-4) and turns.energy_K is None
    else:
        assert turns.energy_K == pytest.approx(energy, abs=1e-4) and turns.entropy_N is None
        assert (turns.energy_K > 0).all()


@pytest.mark.parametrize(("name", "what"), [("empg", "entropy_N"), ("optimal_token_baseline", "energy_K")])
def test_a_missing_measurement_is_named(name, what):
    with rejects(BadTurns, key=what, advice="give"):
        advantages(Turns.of([1.0, 0.0], [0, 1], [0, 0]), CREDITS.find(name)())
    with rejects(BadTurns, "must", key=what):
        Turns.of([1.0, 0.0], [0, 1], [0, 0], **{what: [0.5]})


def test_empg_rewards_certainty_and_ignores_equal_entropies():
    """Two turns of a success: the surer one gets more; where all are equally sure, only the bonus sets turns apart."""
    columns = {"reward_N": [0, 1, 0], "episode_N": [0, 0, 1], "group_E": [0, 0]}
    last = {"reward_N": [1, 1, 0], "episode_N": [0, 1, 2], "group_E": [0, 0, 0]}  # no turn has a next one
    sure = CREDITS.find("empg")().advantage(Turns.of(**last, entropy_N=[0.1, 2.0, 1.0]))
    assert sure[0] > sure[1]
    even = CREDITS.find("empg")().advantage(Turns.of(**columns, entropy_N=[0.5] * 3))
    plain = CREDITS.find("grpo")().advantage(Turns.of(**columns))
    assert even - (plain - plain.mean()) == pytest.approx(np.array([0.1, 0.0, 0.0]) - 0.1 / 3)


def test_token_baseline_of_equal_returns_gives_no_advantage():
    turns = Turns.of([1.0, 1.0, 5.0], [0, 1, 2], [0, 0, 1], tokens_N=[2, 3, 1], energy_K=[0.5] * 6)
    assert CREDITS.find("optimal_token_baseline")().advantage(turns).tolist() == [0.0] * 6
