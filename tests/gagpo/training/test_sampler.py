"""The weights that the run's engine samples from."""

import pytest

from gagpo.agents.context import Context
from gagpo.agents.rollout import rollout
from gagpo.agents.setup import make_env
from gagpo.distributed.ranks import Ranks
from gagpo.learning.policy import load_policy
from gagpo.settings import SettingsError, load
from gagpo.settings.machine import with_machine_formats
from gagpo.training.sampler import Sampler
from tests.gagpo.training.test_trainer import run
from tests.rejections import rejects


def sampler(settings, ranks):
    policy, env = load_policy(settings, None), make_env(settings.environment.id, settings.environment.kwargs)
    return Sampler(settings, {"": env}, policy, policy.model, rollout, ranks), policy


@pytest.mark.parametrize(("ahead", "processes"), [(0, 1), (0, 2), (1, 1)])
def test_the_engine_shares_weights_only_where_nothing_else_changes_or_splits_them(corridor, ahead, processes):
    settings = with_machine_formats(load(corridor(rollout={"ahead": ahead, "workers": 1})), width=32)
    result, policy = sampler(settings, Ranks(0, processes))
    shared = processes == 1 and not ahead
    assert result.engine.shares_weights is shared and (result.engine.model is policy.model) is shared


@pytest.mark.parametrize(("ahead", "processes", "name"), [(0, 2, "processes=1"), (1, 1, "rollout.ahead=0")])
def test_an_engine_that_keeps_no_weights_of_its_own_is_refused(corridor, outside, ahead, processes, name):
    source = (outside / "elsewhere.py").read_text().replace("shares_weights = False", "shares_weights = True")
    (outside / "elsewhere.py").write_text(source)
    settings = load(corridor(engine="elsewhere:ConstantOptions", rollout={"ahead": ahead, "workers": 1}))
    with rejects(SettingsError, name):
        sampler(settings, Ranks(0, processes))


def test_a_run_builds_one_context_for_all_iterations_and_evaluations(corridor, tmp_path, monkeypatch):
    contexts, original = [], Context.__init__

    def counted(self, *arguments, **options):
        contexts.append(self)
        original(self, *arguments, **options)

    monkeypatch.setattr(Context, "__init__", counted)
    config = corridor(training={"iterations": 2}, evaluation={"every": 1, "tasks": 2})
    folder = run(config, tmp_path / "run")
    assert len(folder.metrics()) == 2 and len(list((folder.path / "evals").glob("*.json"))) >= 2
    assert len(contexts) == 1
