"""Servers started by the engine: restarted with the next weights, and at once when none is left."""

import threading

import pytest
from pydantic import ValidationError

from gagpo.agents.engines.base import running
from gagpo.agents.engines.options import EngineInputs
from gagpo.agents.engines.registry import engine_options
from gagpo.agents.engines.remote import engine as engine_file
from gagpo.agents.engines.remote.engine import VLLMServerEngine
from gagpo.agents.engines.remote.options import VLLMOptions
from gagpo.agents.engines.remote.replicas import ReplicasLost
from gagpo.base.child import RestartBudget
from gagpo.base.errors import InvalidArgument
from gagpo.base.rank import Rank
from gagpo.model.loading import ModelError
from gagpo.model.weights import named_tensors
from gagpo.settings import EngineSettings
from tests.agents.engines.remote.fake_server import serving
from tests.agents.engines.remote.test_servers import GREEDY, assert_same_tokens, expected, requests_of
from tests.rejections import rejects


class Starter:
    """Starts fake servers, and records their plans."""

    def __init__(self, model, tokenizer):
        self.made, self.model, self.refusing = [], (model, tokenizer), False

    def __call__(self, plan, log):
        self.made.append(Started(self, plan))
        return self.made[-1]

    def close(self):
        for started in self.made:
            started.close()


class Started:
    def __init__(self, starter, plan):
        self.starter, self.plan, self.count, self.fake, self._serving = starter, plan, 0, None, None

    @property
    def url(self):
        return self.fake.url

    @property
    def running(self):
        return self.fake is not None and not self.fake.gone

    def start(self):
        self.close()
        if self.starter.refusing:
            raise ModelError("there is no room")
        self.count += 1
        self._serving = serving(*self.starter.model)
        (self.fake,) = self._serving.__enter__()

    def wait(self, deadline):
        assert self.running

    def close(self):
        if self._serving is not None:
            if self.fake.gone:
                self.fake.free.set()
            else:
                self._serving.__exit__(None, None, None)
            self._serving = None


@pytest.fixture
def starter(tiny):
    starter = Starter(*tiny)
    yield starter
    starter.close()


def engine_of(tiny, starter, **options):
    """The engine with fake servers, started."""
    engine = unstarted(tiny, starter, **options)
    engine.start()
    return engine


def unstarted(tiny, starter, rank=None, **options):
    options = {"replicas": 2, "timeout": 60, "health_timeout": 60, **options}
    options = engine_options("vllm", {name: value for name, value in options.items() if value is not None})
    return VLLMServerEngine(EngineInputs(*tiny), options, start_server=starter, rank=rank)


def test_all_servers_are_restarted_with_the_same_weights_when_none_is_left(tiny, starter):
    engine = engine_of(tiny, starter)
    engine.load_weights(named_tensors(tiny[0]))
    for started in starter.made:
        started.fake.delay = 0.3
    engine.submit(requests_of(tiny[1], 6), GREEDY)
    for started in starter.made:
        started.fake.die()
    results = {}
    while more := engine.collect():
        results |= {request.session: out.ids.tolist() for request, out in more}
    assert [results[session] for session in range(6)] == expected(tiny, requests_of(tiny[1], 6))
    assert engine.counters["servers_lost"] == 2 and engine.counters["restarts"] == 2
    assert [started.count for started in starter.made] == [2, 2]
    engine.close()


def test_a_dead_server_is_restarted_with_the_next_weights(tiny, starter):
    engine = engine_of(tiny, starter)
    starter.made[0].fake.die()
    assert_same_tokens(engine, tiny)
    assert engine.measures()["engine_servers"] == 1 and starter.made[0].count == 1
    engine.load_weights(named_tensors(tiny[0]))
    assert engine.measures()["engine_servers"] == 2 and [started.count for started in starter.made] == [2, 1]
    for session in range(6):
        engine.release(session)
    assert_same_tokens(engine, tiny)
    assert starter.made[0].fake.asked
    engine.close()


def test_a_server_that_waits_for_lost_weights_is_restarted_although_it_answers(tiny, starter):
    engine = engine_of(tiny, starter)
    engine._router.home[1].client.hangs = True
    engine.load_weights(named_tensors(tiny[0]))
    assert engine.measures()["engine_servers"] == 2 and [started.count for started in starter.made] == [1, 2]
    assert not engine._router.home[1].client.hangs
    engine.close()


def test_a_slow_server_is_not_restarted(tiny, starter):
    engine = engine_of(tiny, starter, health_timeout=3)
    starter.made[0].fake.silent = True
    assert_same_tokens(engine, tiny)
    assert engine.counters["timeouts"] == 1
    starter.made[0].fake.silent = False
    starter.made[0].fake.free.set()
    engine.load_weights(named_tensors(tiny[0]))
    assert engine.measures()["engine_servers"] == 2 and [started.count for started in starter.made] == [1, 1]
    engine.close()


def test_restarts_are_bounded(tiny, starter, monkeypatch):
    monkeypatch.setattr(engine_file, "RESTARTS", 1)
    engine = engine_of(tiny, starter)
    for _ in range(2):
        for started in starter.made:
            if started.running:
                started.fake.die()
        if engine.counters["restarts"]:
            with rejects(ReplicasLost, "brought back: http"):
                engine.generate(requests_of(tiny[1], 2), GREEDY)
        else:
            assert_same_tokens(engine, tiny)
    assert sum(started.count for started in starter.made) == 3
    engine.close()


def test_restarts_are_counted_by_the_hour(tiny, starter, caplog):
    engine = engine_of(tiny, starter)
    now = 0.0
    engine._servers.budget = RestartBudget(1, clock=lambda: now)
    for in_use in (2, 1):  # one restart is allowed, the next comes too soon
        starter.made[0].fake.die()
        engine.load_weights(named_tensors(tiny[0]))
        assert engine.measures()["engine_servers"] == in_use
    assert caplog.messages[1] == "a vLLM server stays lost: the restarts of this hour (1) are used up"
    assert caplog.messages[2].startswith(f"lost the vLLM server {starter.made[0].url}, 1 of 2 are left: ")
    reported = len(caplog.messages)
    engine.load_weights(named_tensors(tiny[0]))
    assert len(caplog.messages) == reported  # once is enough
    now = 3600.0
    engine.load_weights(named_tensors(tiny[0]))
    assert engine.measures()["engine_servers"] == 2
    assert caplog.messages[-1] == f"started a vLLM server again, now {starter.made[0].url}"
    engine.close()


def test_a_start_that_fails_leaves_nothing(tiny, starter):
    starter.refusing = True
    with rejects(ModelError, "no room"):
        engine_of(tiny, starter)


@pytest.mark.parametrize("options", [{"tensor_parallel_size": 2}, {"placement": "colocated", "gpus": [0, 1]}])
def test_a_server_over_the_gpus_of_several_ranks_is_refused(options):
    with pytest.raises(
        ValidationError, match=r"one server on each rank's own GPU.*gpus: \[4, 5\], tensor_parallel_size: 2"
    ):
        EngineSettings(name="vllm", options=options)


@pytest.mark.parametrize("name", ["tensor_parallel", "tensor_paralel_size"])
def test_other_names_for_several_gpus_are_corrected(name):
    with pytest.raises(ValidationError, match="tensor_parallel_size"):
        EngineSettings(name="vllm", options={name: 2})


def test_servers_share_the_ranks_gpu_unless_others_are_named():
    assert VLLMOptions().is_colocated("cuda") and not VLLMOptions().is_colocated("cpu")
    assert not VLLMOptions(gpus=[4]).is_colocated("cuda")
    assert not VLLMOptions(urls=["http://a:1"]).is_colocated("cuda")
    assert VLLMOptions(placement="colocated", replicas=1).is_colocated("cuda")
    assert not VLLMOptions(placement="separate").is_colocated("cuda")
    EngineSettings(name="vllm", options={"gpus": [4, 5], "tensor_parallel_size": 2})


def test_memory_is_planned_where_servers_use_it():
    assert VLLMOptions().uses_device("cuda") and VLLMOptions().uses_device("cpu")
    assert not VLLMOptions(gpus=[4]).uses_device("cuda") and not VLLMOptions(urls=["http://a:1"]).uses_device("cpu")


def test_nothing_runs_before_the_start(tiny, starter):
    engine = unstarted(tiny, starter)
    assert not starter.made and engine.under_way == 0 and not router_threads()
    with rejects(InvalidArgument, "servers", advice="start()"):
        engine.generate(requests_of(tiny[1], 1), GREEDY)
    with running(engine):
        assert len(starter.made) == 2
        engine.start()
        assert len(starter.made) == 2 and starter.made[0].count == 1
        assert router_threads()
    assert not any(started._serving for started in starter.made) and not router_threads()


def router_threads():
    return [thread for thread in threading.enumerate() if thread.name == "vLLM servers"]


def test_a_colocated_server_over_several_gpus_is_refused_by_the_engine_too(tiny, starter):
    with rejects(InvalidArgument, "own GPU", key="tensor_parallel_size"):
        engine_of(tiny, starter, replicas=None, placement="colocated", gpus=[0, 1], tensor_parallel_size=2)
    assert not starter.made


def test_a_colocated_server_sleeps_and_wakes_with_the_trainer(tiny, starter):
    engine = engine_of(tiny, starter, replicas=None, placement="colocated")
    (started,) = starter.made
    assert started.plan.sleeps and started.plan.memory == 0.4
    engine.sleep()
    with rejects(InvalidArgument, "asleep"):
        assert_same_tokens(engine, tiny)
    engine.wake()
    engine.load_weights(named_tensors(tiny[0]))
    assert_same_tokens(engine, tiny)
    orders = [order for order in started.fake.orders if "sl" in order or "wake" in order or "finish" in order]
    weights, cache = "/wake_up?tags=weights", "/wake_up?tags=kv_cache"  # room for one, then the other
    assert orders == ["/finish_weight_update", "/sleep?level=2", weights, "/finish_weight_update", cache]
    engine.load_weights(named_tensors(tiny[0]))
    assert started.fake.orders[-1] == "/finish_weight_update"  # it had not slept
    engine.close()


@pytest.mark.parametrize("number", [0, 1])
def test_the_ranks_of_a_machine_share_its_gpus(tiny, starter, number):
    rank = Rank(rank=6 + number, world_size=8, local=number, local_world_size=2)
    engine = engine_of(tiny, starter, gpus=[0, 1, 2, 3, 4, 5, 6, 7], tensor_parallel_size=2, rank=rank)
    assert [started.plan.devices for started in starter.made] == [[(0, 1), (2, 3)], [(4, 5), (6, 7)]][number]
    engine.close()
    with rejects(InvalidArgument, "8 GPUs", "2 replicas", "2 ranks", "got 4", key="engine.options.gpus"):
        engine_of(tiny, starter, gpus=[4, 5, 6, 7], tensor_parallel_size=2, rank=rank)


def test_separate_servers_are_given_their_gpus(tiny, starter):
    engine = engine_of(tiny, starter, gpus=[4, 5, 6, 7], tensor_parallel_size=2)
    assert [started.plan.devices for started in starter.made] == [(4, 5), (6, 7)]
    assert not starter.made[0].plan.sleeps and starter.made[0].plan.memory == 0.9
    engine.sleep()
    assert_same_tokens(engine, tiny)
    engine.close()


@pytest.mark.parametrize(
    ("options", "key", "names"),
    [
        ({"urls": ["no address"]}, "urls", ()),
        ({"urls": ["http://a:1", "http://a:1"]}, "urls", ()),
        ({"urls": ["http://a:1"], "replicas": 2}, "replicas", ()),
        ({"urls": ["http://a:1"], "health_timeout": 0}, "health_timeout", ("0",)),
        ({"placement": "beside"}, "placement", ("separate", "colocated")),
        ({"placement": "colocated", "replicas": 2}, "replicas", ("colocated", "1")),
        ({"replicas": 2, "gpus": [1]}, "engine.options.gpus", ("2 GPUs", "2 replicas of 1", "got 1")),
    ],
)
def test_wrong_options_are_named(tiny, options, key, names):
    with rejects(InvalidArgument, *names, key=key):
        VLLMServerEngine(EngineInputs(*tiny), engine_options("vllm", options))
