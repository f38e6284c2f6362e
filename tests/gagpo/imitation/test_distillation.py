"""Distillation has the gradient of its divergence, and the teacher gets the right prompts."""

import math

import numpy as np
import pytest
import torch

from gagpo.agents.agent import ChatFormat
from gagpo.agents.context import Context
from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.prompts import find_prompt
from gagpo.algorithms import load
from gagpo.imitation.distillation import hinted_rows, hints_of
from gagpo.learning.batch import build_rows
from gagpo.objectives import Layout, policy_loss
from gagpo.objectives.imitation import Distillation, decay, distillation_advantage
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError
from gagpo.settings import load as load_run
from gagpo.training.trainer import Trainer, train


@pytest.mark.parametrize("form", ["log_ratio", "bounded"])
@pytest.mark.parametrize("seed", range(2))
def test_the_expected_gradient_is_that_of_the_divergence_from_the_teacher(form, seed):
    """Over all tokens of a small vocabulary, each as often as it is sampled: KL to the teacher, or to the mixture."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_()
    teacher = torch.log_softmax(torch.randn(6, generator=generator, dtype=torch.float64), 0)
    log_pi = torch.log_softmax(logits, 0)
    chosen = Distillation(teacher="a-model", form=form, alpha=0.3)
    advantage = distillation_advantage(teacher.numpy(), log_pi.detach().numpy(), chosen)
    algorithm = load("dapo", {"gate": {"name": "none"}, "controllers": {"dynamic_sampling": None, "overlong": None}})
    total = torch.zeros_like(logits)
    for token in range(6):
        one = log_pi[token : token + 1]
        loss, _ = policy_loss(
            one, one.detach(), torch.tensor(advantage[token : token + 1]), Layout.of(torch.tensor([0])), algorithm
        )
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
        total += log_pi[token].exp().detach() * gradient
    mixture = teacher.exp() if form == "log_ratio" else 0.3 * teacher.exp() + 0.7 * log_pi.detach().exp()
    (expected,) = torch.autograd.grad((log_pi.exp() * (log_pi - mixture.log())).sum(), logits)
    assert total.numpy() == pytest.approx(expected.numpy(), abs=1e-12)


def test_the_bounded_form_has_a_floor_and_neither_form_is_infinite():
    teacher, student = np.array([-800.0, -np.inf, 0.0]), np.array([-1.0, -1.0, -800.0])
    bounded = distillation_advantage(teacher, student, Distillation(teacher="a", form="bounded", alpha=0.25))
    assert bounded[:2] == pytest.approx([math.log(0.75)] * 2) and np.isfinite(bounded).all()
    plain = distillation_advantage(teacher, student, Distillation(teacher="a"))
    assert plain.tolist() == [-20.0, -20.0, 20.0]


def test_coefficients_fall_to_nothing_after_the_last_iteration():
    falling = Distillation(teacher="a", coefficient=0.4, schedule="linear")
    assert [falling.at(i, 4) for i in range(5)] == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.0])
    assert decay("cosine", 0.0) == 1.0 and decay("cosine", 1.0) == pytest.approx(0.0) and decay("constant", 1.0) == 1.0


def episode(context, group, success, *actions):
    made = Episode("t", group=group, success=success)
    for action in actions:
        turn = Turn("You see.", action, action, expert="left")
        turn.prompt_ids = context.prompt(made.turns, f"You stand at {len(made.turns)}.")
        turn.response_ids = context.response(action)
        turn.logprobs = np.full(len(turn.response_ids), -0.5, np.float32)
        made.turns.append(turn)
    return made


@pytest.mark.parametrize("history", ["full", 0])
def test_a_hint_is_read_before_the_very_tokens_that_were_sampled(tiny, history):
    _, tokenizer = tiny
    context = Context(tokenizer, find_prompt("plain"), history=history)
    episodes = [episode(context, 0, True, "right", "left"), episode(context, 0, False, "right")]
    rows = build_rows(episodes)
    for kind, told in (("expert", "A good action: left"), ("success", "What led to success: right; left")):
        found = hinted_rows(rows, episodes, {"": ChatFormat(context, 40)}, kind)
        assert [row.turn_K[0] for row in found] == ([0, 1, 2] if kind == "expert" else [2])
        for row in found:
            turn = [turn for one in episodes for turn in one.turns][row.turn_K[0]]
            assert np.array_equal(row.ids[row.place_K], turn.response_ids)
            assert tokenizer.decode(row.ids).count(told) == 1
            text = tokenizer.decode(row.ids[: row.place_K[0]])
            assert text.replace(f"\n{told}", "") == tokenizer.decode(turn.prompt_ids)
    hinted = hinted_rows(rows, episodes, {"": ChatFormat(context, 40)}, "expert")
    assert sorted(np.concatenate([row.token_K for row in hinted])) == list(
        range(sum(len(turn.response_ids) for one in episodes for turn in one.turns))
    )


def test_an_episode_is_no_hint_for_itself(tiny):
    context = Context(tiny[1], find_prompt("plain"))
    short, long, other = (episode(context, g, True, *a) for g, a in ((0, ["left"]), (0, ["right"] * 2), (1, ["up"])))
    told = hints_of([short, long, other], "success")
    assert told == ["What led to success: right; right", *["What led to success: left"] * 2, ""]


ALONE = {"preset": "dr_grpo", "credit_weight": 0.0}
QUICK = {"splits": [], "before": False}


def test_a_teacher_with_the_same_weights_finds_nothing_to_teach(corridor, tmp_path, warm_model):
    algorithm = {**ALONE, "distillation": {"teacher": warm_model}}
    config = corridor(algorithm=algorithm, training={"iterations": 1}, evaluation=QUICK)
    folder = RunFolder.create(tmp_path / "run", load_run(config))
    train(folder, quiet=True)
    (row,) = folder.metrics()
    assert abs(row["distillation_advantage"]) < 1e-5 and row["distilled_tokens"] == 1.0


@pytest.mark.slow
def test_a_better_model_is_a_good_teacher(corridor, tmp_path):
    """What an hour of credit made of a model, another learns from it in a few iterations without any reward."""
    first = corridor(training={"iterations": 12, "save_every": 12}, evaluation=QUICK)
    train(RunFolder.create(tmp_path / "first", load_run(first)), quiet=True)
    teacher = checkpoints.latest(tmp_path / "first" / "checkpoints").model
    algorithm = {**ALONE, "distillation": {"teacher": teacher}}
    config = corridor(algorithm=algorithm, training={"iterations": 12, "save_every": 12}, evaluation=QUICK)
    folder = RunFolder.create(tmp_path / "run", load_run(config))
    train(folder, quiet=True)
    rows = folder.metrics()
    assert rows[-1]["success_rate"] >= rows[0]["success_rate"] + 0.3
    assert rows[-1]["distillation_advantage"] > 0.5 * rows[0]["distillation_advantage"]


def test_a_teacher_with_another_tokenizer_is_refused(corridor, tmp_path):
    algorithm = {**ALONE, "distillation": {"teacher": "starter:maths"}}
    folder = RunFolder.new(tmp_path / "run", load_run(corridor(algorithm=algorithm)))
    with pytest.raises(SettingsError, match=r"teacher=starter:maths and .* have different tokenizers .*same tokenizer"):
        Trainer(folder, quiet=True)
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"credit_weight": 0.0}, "credit_weight=0 requires expert or distillation"),
        ({"distillation": {"teacher": "self"}}, "set hint=expert or hint=success"),
        ({"distillation": {"teacher": "a", "form": "bounded", "alpha": 1.0}}, "less than 1"),
        ({"distillation": {"teacher": "a"}, "credit": "ppo_turn"}, "distillation does not support a critic"),
        ({"distillation": {"teacher": "a"}, "aggregation": "geometric"}, "one advantage per token"),
        ({"replay": {}, "credit": "ppo_token"}, "replay does not support a critic"),
        ({"expert": {"coefficient": 0}}, "greater than 0"),
        ({"gate": "likelihood", "aggregation": "geometric"}, "does not support gate likelihood"),
    ],
)
def test_what_cannot_be_taught_is_refused_with_the_reason(changes, reason):
    with pytest.raises(ValueError, match=reason):
        load("grpo", changes)
