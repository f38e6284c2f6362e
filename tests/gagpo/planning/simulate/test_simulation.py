"""Simulated runs: an example by hand, limits in which all is known, and what more processors may never do."""

import itertools
import math
from dataclasses import replace

import pytest
import simpy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gagpo.agents.shape import Shape
from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.planning.simulate.engine import Device, SimulatedReplica
from gagpo.planning.simulate.rates import Rates, stated
from gagpo.planning.simulate.simulation import TRANSFER, WAITING, SimulatedPlacement, Simulation
from gagpo.planning.simulate.study import accepts, placements, study, with_ahead
from gagpo.planning.simulate.update import passes, update_seconds
from gagpo.planning.simulate.workload import TurnLengths, Workload
from gagpo.settings import load, parse
from tests.gagpo.conftest import CORRIDOR


def run_settings(algorithm="gagpo", training=None, **rollout):
    rolling = {"tasks": 2, "samples": 2, "workers": 4, "lockstep": False, "max_tokens": 64, **rollout}
    values = {**CORRIDOR, "rollout": rolling, "algorithm": {"preset": algorithm, "kl": {"coefficient": 0.0}}}
    return parse({**values, "training": {"minibatches": 1, "microbatch_tokens": 100, **(training or {})}}, "a test")


def uniform(turns=3, read=10, said=5, windowed=False):
    made, held = [], 0
    for _ in range(turns):
        made.append(TurnLengths(read, held + read, said))
        held += read + said
    return Workload([made], windowed, "uniform")


UNEVEN = Workload(
    [[TurnLengths(5, 5 + 9 * n, 1 + (7 * n + 3 * length) % 11) for n in range(length)] for length in (1, 2, 5, 9)],
    False,
    "uneven",
)
RATES = Rates(
    pass_seconds=0.01,
    sequence_seconds=0.002,
    read_seconds=1e-3,
    train_seconds=2e-3,
    update_seconds=0.05,
    transfer_seconds=0.1,
    environment_seconds=0.05,
    reset_seconds=0.2,
)
ONE, APART = SimulatedPlacement(1, 1, shared=True), SimulatedPlacement(1, 1, shared=False)


@pytest.mark.parametrize("lockstep", [True, False])
def test_an_iteration_computed_by_hand(lockstep):
    """Four like episodes and as many workers: they go through everything side by side."""
    out = Simulation(run_settings(lockstep=lockstep), uniform(), RATES, ONE).run()
    prefill = 0.01 + 1e-3 * 4 * 10
    decode = 4 * (0.01 + 0.002 * 4)  # the first of five tokens comes with the prefill
    rollout = 0.2 + 3 * (prefill + decode + 0.05)
    update = 0.05 + 2e-3 * 4 * (3 * 15)  # each episode is one row of 45 tokens
    assert out.seconds == pytest.approx(rollout + update + 0.1)
    assert out.tokens == 4 * 3 * 5 and out.tokens_per_second == pytest.approx(60 / out.seconds)
    assert out.training == pytest.approx(update / out.seconds)
    assert out.sampling == pytest.approx(3 * (prefill + decode) / out.seconds)
    assert out.parts[WAITING] == pytest.approx(0.2 + 3 * 0.05) and out.parts[TRANSFER] == 0.1
    assert sum(out.parts.values()) == pytest.approx(out.seconds)
    assert out.worlds == pytest.approx((0.2 + 0.15) / out.seconds)
    assert (out.staleness, out.stale_episodes) == (0, 0)


def test_one_worker_steps_one_world_after_the_other():
    rates = Rates(environment_seconds=1.0, reset_seconds=2.0)
    for workers, slots in ((1, 4), (2, 2), (4, 1)):
        for lockstep in (True, False):
            out = Simulation(run_settings(workers=workers, lockstep=lockstep), uniform(), rates, ONE).run()
            assert out.seconds == pytest.approx(slots * (2.0 + 3 * 1.0)), (workers, lockstep)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_with_infinite_rates_only_the_worlds_take_time(ahead):
    made = with_ahead(run_settings(), ahead)
    out = Simulation(made, uniform(), Rates(environment_seconds=1.0), APART).run()
    assert out.sampling == out.training == 0
    assert out.seconds == pytest.approx(3.0) and out.worlds == pytest.approx(1.0)  # a worker for each of four episodes


def test_nothing_takes_no_time():
    assert Simulation(run_settings(), uniform(), Rates(), ONE).run().seconds == 0


rates_drawn = st.builds(
    Rates,
    pass_seconds=st.floats(0, 0.05),
    sequence_seconds=st.floats(0, 0.01),
    train_seconds=st.floats(0, 0.01),
    update_seconds=st.floats(0, 1),
    environment_seconds=st.floats(0.001, 0.3),
    environment_spread=st.floats(0, 1),
    reset_seconds=st.floats(0, 0.3),
)


@settings(deadline=None, max_examples=10)
@given(rates_drawn)
def test_ahead_never_hurts_where_weights_and_prompts_cost_nothing(rates):
    """The very same processors and work; the scoring pass of the correction is done in both.

    Batches are made of other episodes, those that end first, so that a few iterations are a few percent off.
    """
    made = run_settings(workers=36, tasks=3)
    scored = made.model_copy(update={"algorithm": with_ahead(made, 1).algorithm})
    free = replace(rates, sequence_seconds=0.0)
    whole = Simulation(scored, UNEVEN, free, APART, iterations=6).run()
    for ahead in (1, 2):
        out = Simulation(with_ahead(scored, ahead), UNEVEN, free, APART, iterations=6).run()
        assert out.seconds <= whole.seconds * 1.1 + 1e-9


# What means alone put on three and five processors, where all eight together are faster.
APART_IN_VAIN = Rates(train_seconds=5 / 512, environment_seconds=0.25, environment_spread=0.0)


@settings(deadline=None, max_examples=6)
@example(APART_IN_VAIN, False, 1)
@given(rates_drawn, st.booleans(), st.integers(0, 1))
def test_twice_the_processors_are_never_slower(rates, lockstep, ahead):
    made = run_settings(tasks=4, samples=4, lockstep=lockstep)
    lines = study(made, UNEVEN, replace(rates, gather_bytes=1e6, link=1e8, network=1e7), [1, 2, 4, 8], [ahead])
    seconds = [line.outcome.seconds for line in lines]
    for less, more in itertools.pairwise(seconds):
        assert more <= less * 1.1 + 1e-9


@settings(deadline=None, max_examples=10)
@given(rates_drawn, st.booleans(), st.integers(0, 2), st.integers(1, 3))
def test_tokens_are_neither_lost_nor_made(rates, lockstep, ahead, replicas):
    made = with_ahead(run_settings(lockstep=lockstep), ahead)
    simulation = Simulation(made, UNEVEN, rates, SimulatedPlacement(replicas, 1, shared=False))
    simulation.run()
    open_tokens = sum(turn.response for turns in simulation.lengths.values() for turn in turns)
    said = sum(actor.replica.sampled for actor in simulation.actors)
    assert simulation.trained_tokens + open_tokens <= said  # the rest belongs to episodes that are under way
    if ahead == 0:
        # After the last update a new batch has been begun at most.
        assert said - simulation.trained_tokens <= 4 * max(sum(t.response for t in turns) for turns in UNEVEN.episodes)


def test_overlap_hides_the_shorter_of_sampling_and_updating():
    rates = Rates(environment_seconds=1.0, update_seconds=3.0)
    made = run_settings(workers=100)
    assert Simulation(made, uniform(), rates, APART).run().seconds == pytest.approx(6.0)
    out = Simulation(with_ahead(made, 1), uniform(), rates, APART).run()
    assert out.seconds == pytest.approx(3.0) and out.training == pytest.approx(1.0)
    assert out.staleness == pytest.approx(1.0)


def test_shared_processors_work_at_half_speed_while_both_do():
    """Sampling takes 3 s, updating 3 s, all of it on one processor: overlap can gain nothing."""
    rates = Rates(pass_seconds=0.2, update_seconds=3.0)
    made = run_settings(workers=100)
    alone = Simulation(made, uniform(), rates, ONE).run()
    both = Simulation(with_ahead(made, 1), uniform(), rates, ONE).run()
    assert alone.seconds == pytest.approx(6.0)
    assert both.seconds == pytest.approx(6.0, rel=0.1)


def test_an_update_is_that_of_the_fullest_rank():
    made = run_settings()
    rates = Rates(train_seconds=1.0, step_seconds=4.0, gather_bytes=100.0, link=10.0, network=1.0, per_node=2)
    rows = [50, 30, 20, 20]
    alone = update_seconds(made, rates, rows, 1)
    assert (alone.computing, alone.exchange, alone.rest) == (120, 0, 4)
    two = update_seconds(made, rates, rows, 2)
    assert (two.computing, two.exchange, two.rest) == (70, 0, 2)
    four = update_seconds(made, rates, rows, 4)  # the network of other nodes: 100 bytes, three quarters of them sent
    assert (four.computing, four.exchange, four.rest) == (50, pytest.approx(25), 1)
    assert update_seconds(made, rates, rows, 64).computing == 50  # a row is never cut


def test_passes_count_what_is_scored():
    assert passes(run_settings(), RATES) == 1
    assert passes(with_ahead(run_settings(), 1), RATES) == pytest.approx(4 / 3)
    assert passes(run_settings(training={"epochs": 2}), RATES) == 2


def test_placements_use_what_there_is():
    assert placements(4, 0) == [SimulatedPlacement(n, n, shared=True) for n in (4, 2, 1)]
    for placed in placements(16, 1):
        assert placed.processors <= 16 and min(placed.replicas, placed.ranks) >= 1
    assert math.isclose(Rates().decode_seconds(5), 0)


def test_too_many_processors_for_the_episodes_are_left_idle():
    """Four episodes cannot keep 64 replicas busy, and the exchange between as many ranks costs more than it gives."""
    rates = replace(RATES, gather_bytes=1e6, link=1e8, network=1e6)
    (line,) = study(run_settings(), UNEVEN, rates, [64], [0])
    assert line.placement.processors < 64 and line.record()["bottleneck"] == line.outcome.bottleneck


def test_what_is_recommended_is_what_train_accepts():
    """Every placement of the study passes the checks of a run with so many ranks, and those left out fail them."""
    made = run_settings(tasks=4)
    for engine in ("transformers", "vllm-server"):
        chosen = made.model_copy(update={"engine": type(made.engine)(name=engine)})
        for line in study(chosen, UNEVEN, RATES, [1, 2, 6, 8], [0, 1], iterations=1):
            used = with_ahead(chosen, line.ahead)
            require_fitting(used, line.placement.ranks)
            assert line.placement.shared or engine == "vllm-server"
    assert not accepts(made, SimulatedPlacement(3, 3, shared=True))  # four task groups
    assert not accepts(with_ahead(made, 1), SimulatedPlacement(1, 1, shared=False))  # it samples where it trains
    elsewhere = with_ahead(made.model_copy(update={"engine": type(made.engine)(name="vllm-server")}), 1)
    assert accepts(elsewhere, SimulatedPlacement(3, 1, shared=False))


def test_ahead_can_be_slower():
    """On one processor the two share it, old log-probabilities cost a pass more, and caches are lost in between."""
    slow = replace(RATES, environment_seconds=0, reset_seconds=0, update_seconds=0, train_seconds=0.05)
    by_ahead = {line.ahead: line.outcome.seconds for line in study(run_settings(), UNEVEN, slow, [1], [0, 1])}
    assert by_ahead[1] > by_ahead[0]


def test_more_processors_are_never_slower():
    rates = replace(RATES, gather_bytes=1e6, link=1e8, network=1e6)
    lines = list(study(run_settings(tasks=8), UNEVEN, rates, [1, 2, 4, 8, 16, 64], [0]))
    assert all(more.outcome.seconds <= less.outcome.seconds for less, more in itertools.pairwise(lines))


def test_mixed_passes_go_on_decoding_while_prompts_are_read():
    """Two episodes that come one after the other: with passes of its own a prompt makes the other response wait."""
    seconds = {}
    for mixed in (False, True):
        rates = Rates(pass_seconds=0.01, read_seconds=1e-3, mixed=mixed, chunk=10)
        clock = simpy.Environment()
        replica = SimulatedReplica(clock, rates, Device(False))
        first = replica.request(10, 21)
        clock.run(until=0.12)  # read in .02; ten of its twenty tokens more are there
        second = replica.request(40, 1)
        clock.run(until=first & second)
        seconds[mixed] = clock.now
    assert seconds[False] == pytest.approx(0.02 + 20 * 0.01 + 0.01 + 0.04)
    assert seconds[True] == pytest.approx(0.02 + 20 * 0.01 + 0.04)  # its four passes were the other's too


def test_a_full_cache_lets_requests_wait():
    rates = Rates(pass_seconds=0.01, cache_tokens=30)
    clock = simpy.Environment()
    replica = SimulatedReplica(clock, rates, Device(False))
    ends = [replica.request(10, 10, 10) for _ in range(2)] + [replica.request(50, 1, 50)]
    clock.run(until=clock.all_of(ends))
    assert clock.now == pytest.approx(2 * 0.1 + 0.01)  # one after the other; what fits nowhere goes alone


def test_engines_have_rates_of_their_own(corridor):
    shape = Shape(
        parameters=10**9, layers=28, width=1536, heads=12, key_value_heads=2, head_size=128, feed_forward=8960,
        experts=1, vocabulary=150_000, context=32768, embeddings=2 * 10**8, linear=8 * 10**8,
    )  # fmt: skip
    made = {}
    for name in ("transformers", "vllm"):
        chosen = load(corridor(engine={"name": name, "dtype": "bfloat16"}, rollout={"max_tokens": 512}))
        made[name] = [stated(one, shape, 300, 25, 128) for one in (chosen, with_ahead(chosen, 1))]
    plain, ahead = made["transformers"]
    paged = made["vllm"][0]
    assert paged.mixed and paged.cache_tokens < math.inf and not plain.mixed
    assert paged.sequence_seconds < plain.sequence_seconds  # a slot is read to its end
    assert ahead.pass_seconds > plain.pass_seconds == paged.pass_seconds  # without graphs beside a training thread
    assert made["vllm"][1] == paged
