"""The weights that the run's engine samples from."""

import pytest

from gagpo.agents.rollout import rollout
from gagpo.agents.setup import make_env
from gagpo.distributed.ranks import Ranks
from gagpo.settings import SettingsError, load
from gagpo.training.policy import load_policy
from gagpo.training.sampler import Sampler


def sampler(settings, ranks):
    policy, env = load_policy(settings, None), make_env(settings.environment.id, settings.environment.kwargs)
    return Sampler(settings, {"": env}, policy, policy.model, rollout, ranks), policy


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("ahead", [0, 1])
def test_the_engine_shares_weights_only_where_nothing_else_changes_or_splits_them(corridor, processes, ahead):
    if processes == 2 and ahead:
        pytest.skip("the collector refuses both together")
    made, policy = sampler(load(corridor(rollout={"ahead": ahead, "workers": 1})), Ranks(0, processes))
    shared = processes == 1 and not ahead
    assert made.engine.shares_weights is shared and (made.engine.model is policy.model) is shared


def test_an_engine_that_keeps_none_of_its_own_is_refused_among_several_ranks(corridor, outside):
    source = (outside / "elsewhere.py").read_text().replace("shares_weights = False", "shares_weights = True")
    (outside / "elsewhere.py").write_text(source)
    with pytest.raises(SettingsError, match=r"samples from the weights in training.*set processes=1"):
        sampler(load(corridor(engine="elsewhere:Constant")), Ranks(0, 2))
