"""Bytes and seconds of an iteration on a cluster: hand-computed numbers, and what grows with what."""

import pytest
from transformers import Qwen2Config

from gagpo.base.errors import InvalidArgument
from gagpo.model.shape import sizes
from gagpo.planning.fitting import fastest_unsharded, with_chosen_unsharded
from gagpo.planning.known_shapes import known_config
from gagpo.planning.plan import Guess, cluster_plan, plan
from gagpo.planning.rates import GPUS, rates_of
from gagpo.planning.traffic import Cluster, Passes, experience_bytes, passes_of, traffic_of
from gagpo.settings import load
from gagpo.settings.resolve import resolve
from tests.gagpo.planning.test_recipes import SHAPES
from tests.rejections import rejects

GB = 1e9


@pytest.fixture(scope="module")
def seven():
    """The sizes of Qwen2.5-7B."""
    return sizes(known_config("Qwen/Qwen2.5-7B-Instruct"))


def settings_of(*overrides):
    return resolve(load("alfworld-8x80gb", list(overrides)))


def test_known_configs_are_those_of_the_hub():
    for name, config in SHAPES.items():
        recorded = known_config(name)
        assert isinstance(recorded, Qwen2Config)
        assert recorded.to_dict() == config.to_dict()
    assert known_config("someone/else") is None


def test_traffic_of_two_ranks_by_hand(seven):
    """Each rank receives half of everything: layers twice and the ends once a pass, gradients in float32."""
    settings = settings_of("processes=2", "rollout.tasks=16")
    traffic = traffic_of(settings, seven, Cluster(1, 2), Passes(3, 2), 1000.0)
    layers = seven.parameters - seven.embeddings
    assert traffic.gathered == pytest.approx(0.5 * 2 * (3 * (2 * layers + seven.embeddings) + 2 * seven.parameters))
    assert traffic.reduced == pytest.approx(0.5 * 4 * 3 * seven.parameters)
    assert traffic.files == 2 * seven.parameters and traffic.read == 2 * traffic.files
    assert traffic.policy == 0.5 * traffic.files and traffic.episodes == 500.0
    assert traffic.network == 0.0, "one machine"


def test_one_rank_moves_nothing_but_files(seven):
    traffic = traffic_of(settings_of("processes=1"), seven, Cluster(), Passes(8, 7), 1000.0)
    assert (traffic.link, traffic.network, traffic.episodes) == (0.0, 0.0, 0.0)
    assert traffic.files == 2 * seven.parameters


def test_an_adapter_travels_alone(seven):
    settings = settings_of("lora.rank=16", "lora.base_dtype=bfloat16")
    traffic = traffic_of(settings, seven, Cluster(1, 8), Passes(1, 0), 0.0)
    full = traffic_of(settings_of(), seven, Cluster(1, 8), Passes(1, 0), 0.0)
    assert traffic.files < 0.02 * full.files and traffic.reduced < 0.01 * full.reduced
    assert traffic.gathered > full.gathered, "the frozen weights are sharded too"


def test_passes_count_micro_batches_scoring_and_the_reference():
    settings = settings_of()  # 8 mini-batches of 8 ranks with 16,384 tokens, recompute, a reference
    assert passes_of(settings, 8 * 8 * 16_384 * 2.0) == Passes(16, 14 + 16)
    assert passes_of(settings, 10.0) == Passes(8, 7 + 8), "a mini-batch takes at least one pass"
    without = settings_of("algorithm.kl.coefficient=0", "training.epochs=2")
    assert passes_of(without, 10.0) == Passes(16, 8)


def test_the_network_passes_the_episodes_of_all_ranks(seven):
    flat = settings_of("processes=16", "training.unsharded=least")
    traffic = traffic_of(flat, seven, Cluster(2, 8), Passes(1, 0), 1600.0)
    assert traffic.network == pytest.approx(traffic.link + 8 * 1500.0)


def test_copies_on_each_machine_exchange_gradients_alone(seven):
    traffic = traffic_of(settings_of("processes=16"), seven, Cluster(2, 8), Passes(1, 0), 0.0)
    alone = traffic_of(settings_of("processes=8"), seven, Cluster(1, 8), Passes(1, 0), 0.0)
    assert (traffic.link, alone.replicated) == (alone.link, 0.0)
    assert traffic.network == pytest.approx(8 * 4 * seven.parameters / 8)  # an all-reduce of two sends a half twice
    shards = [
        next(segment.bytes for segment in plan(settings_of("processes=16", *more), shape=seven, machines=2).parts)
        for more in ((), ("training.unsharded=least",))
    ]
    assert shards == [4 * seven.parameters / 8, 4 * seven.parameters / 16]


@pytest.mark.parametrize(("unsharded", "gathered", "reduced"), [("layers", 3, 3), ("gradients", 3, 1), ("all", 1, 1)])
def test_collective_calls_of_a_step(seven, unsharded, gathered, reduced):
    """Three micro-batches of one step: by default layers are gathered twice for each."""
    changes = ["processes=2", "rollout.tasks=16", "training.minibatches=1", f"training.unsharded={unsharded}"]
    traffic = traffic_of(settings_of(*changes), seven, Cluster(1, 2), Passes(3, 0), 0.0)
    layers = seven.parameters - seven.embeddings
    assert traffic.reduced == pytest.approx(0.5 * 4 * reduced * seven.parameters)
    twice = 0 if unsharded == "all" else gathered * layers
    assert traffic.gathered == pytest.approx(0.5 * 2 * (gathered * seven.parameters + twice))


def test_the_fastest_that_fits_moves_the_fewest_bytes(seven):
    assert with_chosen_unsharded(settings_of(), Guess(), 20.0, seven).training.unsharded == "least"
    names = [fastest_unsharded(settings_of(), Guess(), size, seven) for size in (200.0, 80.0, 60.0, 20.0)]
    assert [name and name[0] for name in names] == ["all", "gradients", "layers", None]


def test_experience_is_ids_logprobs_and_texts():
    assert experience_bytes(10, 300, 20) == 10 * (1200 + 80 + 1500)


def planned(machines, gpus, gpu="h100", **changes):
    overrides = [f"{key}={value}" for key, value in changes.items()]
    settings = settings_of(f"processes={machines * gpus}", *overrides)
    shape = sizes(known_config(settings.model))
    return cluster_plan(settings, plan(settings, Guess(), shape, 80.0), Cluster(machines, gpus), rates_of(gpu))


def test_more_gpus_take_less_time_until_the_network_bounds():
    item, eight, sixteen = planned(1, 1).time, planned(1, 8).time, planned(2, 8).time
    assert item.total > eight.total > sixteen.total
    assert item.links == item.network == eight.network == 0.0 and sixteen.network > 0.0
    slow = planned(64, 1, "l40s", **{"rollout.tasks": 64, "training.microbatch_tokens": 2048}).time
    assert slow.bottleneck() == "collective calls between machines (network)"
    assert slow.update == slow.network > slow.arithmetic


def test_the_parts_add_up():
    time = planned(1, 8).time
    assert time.update == max(time.arithmetic, time.links, time.network)
    assert time.total == pytest.approx(time.decoding + time.prompts + time.update + time.weights + time.episodes)
    record = planned(1, 8).record()
    assert record["seconds"]["bottleneck"] == time.bottleneck() and record["rates"]["name"] == "h100"


def test_an_unknown_gpu_is_named():
    with rejects(InvalidArgument, "GPU 'h10'"):
        rates_of("h10")
    assert all(rates.network <= 8 * rates.link for rates in GPUS.values())
