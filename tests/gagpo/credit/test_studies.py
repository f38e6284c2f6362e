"""The studies of credit: true values by hand, their rows, and the small policy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.studies import learner, seeds, truth
from benchmarks.studies.continuations import true_advantages, true_values
from benchmarks.studies.environments import StudyEnv
from benchmarks.studies.policy import FEATURES, STATE_FEATURES, SmallAgent, SmallPolicy
from benchmarks.studies.rows import append_row, has_row, read_rows
from gagpo.agents.agent import ExpertAgent
from gagpo.agents.rollout import group_jobs, rollout

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
ENV = StudyEnv(CORRIDOR, {"max_turns": 30}, "test", 9000)


def played(agent, tasks=("door-07", "door-05"), tries=4, **kwargs):
    with StudyEnv(CORRIDOR, {"max_turns": 8, **kwargs}, "test", 0).pool() as pool:
        jobs = group_jobs(tasks, tries, 1)
        episodes, _ = rollout(agent, pool, jobs)
        return episodes, *true_values(agent, pool, episodes, jobs, tries=3)


def test_true_values_depend_on_the_remaining_turns():
    """The expert goes straight: a turn is worth 1 where the door is within the turns that are left, else 0."""
    episodes, value_N, variance_N = played(ExpertAgent(), expert=True)
    expected = []
    for episode in episodes:
        for number, turn in enumerate(episode.turns):
            location, door = (int(segment) for segment in turn.state.split(">"))
            expected.append(float(location - door <= 8 - number))
    assert value_N.tolist() == expected and 0 in expected and 1 in expected
    assert not variance_N.any()
    advantage_N, error_N = true_advantages(episodes, value_N, variance_N)
    assert not advantage_N.any() and not error_N.any()  # nothing that it does changes anything


def test_true_advantages_add_up_to_the_return():
    policy = SmallPolicy()
    episodes, value_N, variance_N = played(SmallAgent(policy), tries=3)
    advantage_N, error_N = true_advantages(episodes, value_N, variance_N)
    first = np.cumsum([0, *(len(episode.turns) for episode in episodes)])
    for number, episode in enumerate(episodes):
        reference = slice(first[number], first[number + 1])
        assert advantage_N[reference].sum() + value_N[reference][0] == pytest.approx(episode.reward)
    # A history that is shared has one value: all starts of a group.
    assert np.ptp(value_N[first[:3]]) == 0 and (error_N >= 0).all()


def test_the_agent_samples_from_the_policy_that_is_trained():
    policy = SmallPolicy()
    policy.weight.data = torch.randn(len(policy.weight), generator=torch.Generator().manual_seed(0))
    episodes, *_ = played(SmallAgent(policy))
    turns = [turn for episode in episodes for turn in episode.turns]
    logprob_N, entropy_N = policy.logprobs(turns)
    assert logprob_N.detach().numpy() == pytest.approx(np.concatenate([turn.logprobs for turn in turns]), abs=1e-5)
    assert ((entropy_N >= -1e-6) & (entropy_N <= np.log(2) + 1e-6)).all()
    assert all(len(turn.prompt_ids) == STATE_FEATURES + 2 * FEATURES for turn in turns)


@pytest.mark.parametrize("method", ["graph_sum", "ppo"])
def test_the_small_policy_learns_by_the_suites_own_credit(method):
    torch.manual_seed(0)
    progress = list(learner.train(SmallPolicy(), ENV, method, 0.1, seed=1))
    assert progress[0].success < 0.4 and progress[-1].success > 0.8
    assert "advantage_std" in progress[0].stats


def test_credits_are_scored_by_direction_and_signs():
    rng = np.random.default_rng(0)
    true_N = np.array([0.5, -0.5, 0.05, 0.3])
    batches = [SimpleNamespace(true_N=true_N, error_N=np.full(4, 0.01), gradient=np.asarray) for _ in range(4)]

    def judged(make, chosen=None):
        return truth.judge(batches, [make() for _ in batches], chosen)

    same = judged(lambda: true_N)
    assert same["wrong_signs"] == 0 and np.mean(same["cosines"]) == pytest.approx(1)
    assert judged(lambda: -true_N)["wrong_signs"] == 1 and judged(lambda: 0 * true_N)["wrong_signs"] == 0.5
    assert judged(lambda: np.array([1, 1, -1, 0]))["wrong_signs"] == pytest.approx(0.5)  # the third does not matter
    first = [np.array([True, False, False, False])] * 4
    assert judged(lambda: np.array([1, 1, 1, -1]), first)["wrong_signs"] == 0  # the others are left out
    assert np.mean(judged(lambda: np.array([1, 1, 1, -1]), first)["cosines"]) == pytest.approx(1)
    noisy = judged(lambda: true_N + rng.normal(0, 0.5, 4))
    assert 0 < noisy["signal_to_noise"] < 10


def test_rows_survive_an_interruption(tmp_path):
    rows = tmp_path / "rows.jsonl"
    append_row(rows, {"seed": 1, "area": 0.5})
    with rows.open("a") as file:
        file.write('{"seed": 2, "ar')
    assert not has_row(rows, seed=2)
    append_row(rows, {"seed": 2, "area": 0.25})
    assert [row["area"] for row in read_rows(rows)] == [0.5, 0.25] and has_row(rows, seed=2, area=0.25)


def test_a_table_pairs_seeds_and_takes_the_best_swept_rate(tmp_path):
    for rate, area in ((0.01, 0.3), (0.03, 0.6), (0.1, 0.4)):
        append_row(
            tmp_path / "seeds-sweep.jsonl", {"environment": "small", "method": "graph", "rate": rate, "area": area}
        )
    assert seeds.best_rate(tmp_path / "seeds-sweep.jsonl", "small", "graph") == 0.03
    assert seeds.best_rate(tmp_path / "seeds-sweep.jsonl", "shop", "graph") == 0.03
    with pytest.raises(SystemExit, match="grpo was not swept"):
        seeds.best_rate(tmp_path / "seeds-sweep.jsonl", "small", "grpo")
    for seed, gap in ((1, 0.1), (2, 0.12), (3, 0.09)):
        for method, area in (("gagpo", 0.1 * seed), ("graph", 0.1 * seed + gap)):
            row = {"environment": "small", "method": method, "rate": 0.03, "seed": seed, "area": area, "panel": 0.5}
            append_row(tmp_path / "seeds.jsonl", row)
    text = "\n".join(seeds.table(tmp_path / "seeds.jsonl", "small"))
    assert "10.3 ± 3.8" in text and "graph" in text
