"""Weight decay and schedules."""

import pytest
import torch

from gagpo.learning.optimizer import lr_scale, make_optimizer, parameter_groups
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import OptimizerSettings, SettingsError, load
from gagpo.training.trainer import Trainer
from tests.rejections import rejects


def test_gains_and_biases_do_not_decay(tiny):
    model, _ = tiny
    decayed, saved = parameter_groups(model, 1e-3, weight_decay=0.1)
    assert saved["weight_decay"] == 0.0 and "weight_decay" not in decayed
    assert {p.ndim for p in saved["params"]} == {1} and min(p.ndim for p in decayed["params"]) == 2
    assert len(decayed["params"]) + len(saved["params"]) == len(list(model.parameters()))
    (alone,) = parameter_groups(model, 1e-3, weight_decay=0.0)
    assert len(alone["params"]) == len(list(model.parameters()))


def test_the_bias_of_the_critic_does_not_decay(corridor, tmp_path):
    changes = {"algorithm": {"preset": "ppo"}, "optimizer": {"weight_decay": 0.1}}
    trainer = Trainer(RunFolder.new(tmp_path / "run", load(corridor(**changes))), quiet=True)
    critic = trainer.learner.critic
    decay = {id(p): group["weight_decay"] for group in trainer.learner.optimizer.param_groups for p in group["params"]}
    assert decay[id(critic.head.weight)] == 0.1 and decay[id(critic.head.bias)] == 0.0


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_schedules(schedule, expected):
    settings = OptimizerSettings(warmup_iterations=2, lr_scheduler=schedule)
    assert [lr_scale(settings, i, 6) for i in range(6)] == pytest.approx(expected, abs=1e-6)


def test_states_in_host_memory_need_several_processes(corridor, tmp_path):
    settings = load(corridor(training={"offload": True}))
    with rejects(SettingsError, "processes=2", "got 1", key="training.offload"):
        Trainer(RunFolder.new(tmp_path / "run", settings), quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_fused_step_on_host_memory_is_the_usual_step_up_to_rounding():
    steps = []
    for offloaded in (False, True):
        torch.manual_seed(0)
        parameter = torch.nn.Parameter(torch.randn(50))
        optimizer = make_optimizer(
            [{"params": [parameter], "lr": 1e-2}], OptimizerSettings(weight_decay=0.1), offloaded
        )
        for _ in range(5):
            parameter.grad = torch.randn(50)
            optimizer.step()
        steps.append(parameter.detach())
    torch.testing.assert_close(*steps, atol=1e-6, rtol=1e-6)
