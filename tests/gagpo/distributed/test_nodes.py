"""Four ranks on two simulated machines: weights are sharded within a machine and replicated over both."""

import pytest

from gagpo.distributed.ranks import replicas_of
from tests.gagpo.distributed.conftest import require_same_run, train_in_one, train_in_two, write_config
from tests.gagpo.distributed.test_updates import compare, require_same_updates

NAMES = ("small micro-batches", "unsharded all, 64 tokens", "adapter", "host memory", "trust region")
TWO_NODES = {"count": 4, "LOCAL_WORLD_SIZE": 2}


@pytest.mark.parametrize(
    ("ranks", "on_a_machine", "replicas"), [(2, 2, 1), (16, 8, 2), (24, 8, 3), (4, 1, 1), (10, 8, 1), (8, 8, 1)]
)
def test_each_machine_has_a_copy_unless_it_has_one_rank_or_fewer_than_the_others(ranks, on_a_machine, replicas):
    assert replicas_of(ranks, on_a_machine) == replicas


@pytest.fixture(scope="module")
def results(tmp_path_factory, warm_model):
    return compare(tmp_path_factory.mktemp("nodes"), warm_model, NAMES, **TWO_NODES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_updates_of_two_machines_are_those_of_one_process(results, name):
    require_same_updates(*(cases[name] for cases in results))


@pytest.mark.slow
@pytest.mark.parametrize("unsharded", ["layers", "least"])
def test_a_run_on_two_machines_goes_on_in_one_process(tmp_path, warm_model, unsharded):
    case = {"algorithm": {"preset": "ppo", "kl": {"coefficient": 0.0}}, "rollout": {"tasks": 4}}
    training = {"iterations": 2, "save_every": 1, "ema": True, "unsharded": unsharded}
    config = write_config(tmp_path / "whole", warm_model, training=training, **case)
    first = write_config(tmp_path / "first", warm_model, training={**training, "iterations": 1}, **case)
    train_in_one([(config, tmp_path / "of-1", None)])
    train_in_two([(first, tmp_path / "parts", None)], tmp_path, **TWO_NODES)
    from gagpo.runs.run_folder import RunFolder

    RunFolder.open(tmp_path / "parts").change(["training.iterations=2"])
    train_in_two([(first, tmp_path / "parts", None)], tmp_path, **TWO_NODES)
    require_same_run(tmp_path / "of-1", tmp_path / "parts")
