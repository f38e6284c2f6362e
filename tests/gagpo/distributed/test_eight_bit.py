"""Moments in 8 bits in parts: near those of one process, resumed bit for bit, read by another number of ranks."""

import pytest
import torch
import yaml
from safetensors.torch import load_file

from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.warm_start.run import warm_start
from tests.gagpo.conftest import CORRIDOR
from tests.gagpo.distributed.conftest import require_close, states, train_in_one, train_in_two, weights, write_config

pytest.importorskip("bitsandbytes", reason="an optional extra: pip install 'gagpo[8bit]'")
EIGHT = {
    "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}},
    "optimizer": {"name": "adamw8bit", "learning_rate": 1e-3, "epsilon": 1e-6, "weight_decay": 0.1},
}


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory):
    """As the warm model, with matrices that are large enough for 8 bits, and not a whole number of blocks in a part."""
    folder = tmp_path_factory.mktemp("wide") / "warm"
    section = {**CORRIDOR["warm_start"], "model": {**CORRIDOR["warm_start"]["model"], "width": 64, "feed_forward": 107}}
    config = folder.with_name("warm.yaml")
    config.write_text(yaml.safe_dump({**CORRIDOR, "model": str(folder), "warm_start": section}))
    return str(warm_start(load(config), quiet=True))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, wide_model):
    """Folders of runs of three iterations: of one, of two, of two resumed by two, and from one to two to one."""
    place = tmp_path_factory.mktemp("eight")
    found = {name: place / name / "run" for name in ("one", "two", "resumed", "handed on")}
    configs = {}
    for name in found:
        iterations = 3 if name in ("one", "two") else 1
        training = {"iterations": iterations, "minibatches": 2, "save_every": 1, "keep": 5}
        configs[name] = write_config(place / name, wide_model, training=training, **EIGHT)

    def job(name, iterations=None):
        if iterations:
            RunFolder.open(found[name]).change([f"training.iterations={iterations}"])
        return configs[name], found[name], None

    train_in_one([job("one"), job("handed on")])
    train_in_two([job("two"), job("resumed")], place)
    train_in_two([job("resumed", 3), job("handed on", 2)], place)
    train_in_one([job("handed on", 3)])
    return found


def test_moments_are_one_byte_and_stored_so(runs):
    for name in ("one", "two"):
        found = states(runs[name])
        codes = {key for key, tensor in found.items() if tensor.dtype == torch.uint8}
        assert any("mlp.down_proj" in key for key in codes) and all(key.endswith(("codes1", "codes2")) for key in codes)
        down = "model.layers.0.mlp.down_proj.weight"
        blocks = {"one": (1, 27), "two": (2, 14)}[name]  # 64 x 107 numbers, in one part or in two
        assert found[f"{down}.codes1"].shape == (64, 107) and found[f"{down}.scales2"].shape == blocks
        assert found["model.embed_tokens.weight.exp_avg"].dtype == torch.float32


def test_two_ranks_step_nearly_where_one_does(runs, wide_model):
    begun, one, two = load_file(f"{wide_model}/model.safetensors"), weights(runs["one"]), weights(runs["two"])
    moved = sum(float((one[name] - begun[name]).square().sum()) for name in one)
    apart = sum(float((one[name] - two[name]).square().sum()) for name in one)
    assert 0 < apart < 0.05**2 * moved  # in other blocks they are rounded otherwise


def test_a_run_of_two_ranks_is_resumed_bit_for_bit(runs):
    for found in (weights, states):
        whole, resumed = found(runs["two"]), found(runs["resumed"])
        assert whole.keys() == resumed.keys()
        assert [name for name, value in whole.items() if not torch.equal(value, resumed[name])] == []


def test_a_checkpoint_goes_on_in_another_number_of_ranks(runs):
    require_close(weights(runs["one"]), weights(runs["handed on"]), 2e-3)
    found = states(runs["handed on"])
    assert found["model.layers.0.mlp.down_proj.weight.scales1"].shape == (1, 27)
    assert {float(value) for name, value in found.items() if name.endswith(".step")} == {6.0}
    assert checkpoints.latest(runs["handed on"] / "checkpoints").iteration == 3
