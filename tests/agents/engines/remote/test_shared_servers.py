"""Ranks that share servers: one updates each, all check it, and a lost one costs no episode."""

import threading

import pytest

from gagpo.agents.engines.options import EngineInputs
from gagpo.agents.engines.registry import engine_options
from gagpo.agents.engines.remote.engine import VLLMServerEngine
from gagpo.agents.engines.remote.replicas import ReplicasLost
from gagpo.base.errors import InvalidArgument
from gagpo.model.loading import ModelError
from gagpo.model.weights import named_tensors
from tests.agents.engines.remote.fake_server import serving
from tests.agents.engines.remote.test_servers import change, expected, requests_of, tokens
from tests.agents.engines.remote.test_started import Starter
from tests.agents.engines.remote.threads import as_ranks
from tests.rejections import rejects


def engine_of(tiny, peers, **options):
    values = {"timeout": 60, "health_timeout": 60, **options}
    starter = values.pop("starter", None)
    more = {"start_server": starter} if starter else {}
    engine = VLLMServerEngine(EngineInputs(*tiny, peers=peers), engine_options("vllm", values), **more)
    engine.start()
    return engine


def updates_of(fake):
    return fake.orders.count("/finish_weight_update")


@pytest.mark.parametrize(("ranks", "servers"), [(3, 2), (2, 2), (2, 5), (4, 1)])
def test_ranks_and_servers_in_any_ratio(tiny, ranks, servers, tmp_path):
    requests = requests_of(tiny[1], 4)
    with serving(*tiny, count=servers) as fakes:
        together = threading.Barrier(ranks)

        def sample(peers):
            engine = engine_of(tiny, peers, urls=[fake.url for fake in fakes], folder=str(tmp_path))
            try:
                first = tokens(engine, requests)
                for request in requests:
                    engine.release(request.session)
                together.wait(30)
                if peers.rank == 0:
                    change(tiny[0])
                together.wait(30)
                engine.load_weights(named_tensors(tiny[0]))
                return first, tokens(engine, requests), engine.measures()["engine_servers"]
            finally:
                together.wait(30)
                engine.close()

        before = expected(tiny, requests)
        results = as_ranks(ranks, sample)
        after = expected(tiny, requests)
        assert before != after
        assert [result[:2] for result in results] == [(before, after)] * ranks
        assert sum(result[2] for result in results) == max(ranks, servers)
        assert [updates_of(fake) for fake in fakes] == [2] * servers
        salts = {body["cache_salt"] for fake in fakes for body in fake.asked}
        assert len(salts) == 2, "all ranks name the weights alike"
    assert not list(tmp_path.iterdir())


def test_a_rank_whose_server_dies_goes_on_at_another(tiny):
    """Two ranks that started a server each; one is killed in the rollout and started again with the next weights."""
    starter, killed, updated = Starter(*tiny), threading.Event(), threading.Barrier(2)
    requests = requests_of(tiny[1], 6)

    def sample(peers):
        engine = engine_of(tiny, peers, replicas=1, starter=starter)
        try:
            if peers.rank == 0:
                reference = next(
                    started for started in starter.made if started.url == engine._router.home[0].client.url
                )
                reference.fake.die()
                killed.set()
            killed.wait(30)
            first = tokens(engine, requests)
            for request in requests:
                engine.release(request.session)
            updated.wait(30)
            lost = engine.counters["servers_lost"]
            engine.load_weights(named_tensors(tiny[0]))
            return (
                first,
                tokens(engine, requests),
                lost,
                engine.counters["restarts"],
                engine.measures()["engine_servers"],
            )
        finally:
            updated.wait(30)
            engine.close()

    try:
        target = expected(tiny, requests)
        assert as_ranks(2, sample) == [(target, target, 1, 1, 1.0), (target, target, 0, 0, 1.0)]
        assert [started.count for started in starter.made] in ([2, 1], [1, 2])
    finally:
        starter.close()


def test_a_shared_server_that_fails_an_update_is_left_out_by_all_ranks(tiny):
    with serving(*tiny, count=2) as fakes:

        def sample(peers):
            engine = engine_of(tiny, peers, urls=[fake.url for fake in fakes])
            try:
                ready.wait(30)
                if peers.rank == 0:
                    fakes[1].die()
                ready.wait(30)
                engine.load_weights(named_tensors(tiny[0]))
                ready.wait(30)
                return tokens(engine, requests_of(tiny[1], 4))
            finally:
                engine.close()

        ready = threading.Barrier(3)
        assert as_ranks(3, sample) == [expected(tiny, requests_of(tiny[1], 4))] * 3


def test_no_server_left_ends_every_rank_with_the_reason(tiny):
    with serving(*tiny, count=1) as (fake,):
        ready = threading.Barrier(2)

        def sample(peers):
            engine = engine_of(tiny, peers, urls=[fake.url])
            try:
                ready.wait(30)
                if peers.rank == 0:
                    fake.die()
                ready.wait(30)
                engine.load_weights(named_tensors(tiny[0]))
            finally:
                engine.close()

        errors = as_ranks(2, sample, raises=True)
        assert all(isinstance(error, ReplicasLost) and fake.url in str(error) for error in errors)


def test_each_rank_finds_out_that_a_shared_server_does_not_load_the_weights(tiny):
    with serving(*tiny, count=1) as (fake,):
        ready = threading.Barrier(2)

        def sample(peers):
            engine = engine_of(tiny, peers, urls=[fake.url])
            try:
                ready.wait(30)
                if peers.rank == 0:
                    fake.deaf = True
                    change(tiny[0])
                ready.wait(30)
                engine.load_weights(named_tensors(tiny[0]))
            finally:
                engine.close()

        assert all(isinstance(error, ModelError) for error in as_ranks(2, sample, raises=True))


def test_a_server_on_another_machine_needs_a_shared_folder(tiny):
    with rejects(
        InvalidArgument, key="folder", where="the server http://192.0.2.7:8000", advice="engine.options.folder"
    ):
        engine_of(tiny, None, urls=["http://192.0.2.7:8000"])


def test_servers_restarted_in_a_rollout_get_the_weights_again_although_their_files_are_gone(tiny, tmp_path):
    """The model is trained meanwhile (``rollout.ahead``): the servers get the copy that they had."""
    starter = Starter(*tiny)
    engine = VLLMServerEngine(
        EngineInputs(*tiny, own_weights=True),
        engine_options("vllm", {"replicas": 1, "timeout": 60, "health_timeout": 60, "folder": str(tmp_path)}),
        start_server=starter,
    )
    engine.start()
    try:
        target = expected(tiny, requests := requests_of(tiny[1], 4))
        change(tiny[0])
        assert not list(tmp_path.rglob("*.safetensors"))
        starter.made[0].fake.die()
        assert tokens(engine, requests) == target != expected(tiny, requests)
        assert engine.counters["restarts"] == 1
    finally:
        engine.close()
        starter.close()
