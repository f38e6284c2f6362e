"""Servers that load adapters get the base once and then adapters; others get all weights."""

import copy
import threading

import pytest
import torch

from gagpo.agents.engines.options import EngineInputs
from gagpo.agents.engines.registry import engine_options
from gagpo.agents.engines.remote.adapter_transfer import max_rank
from gagpo.agents.engines.remote.engine import VLLMServerEngine
from gagpo.agents.engines.remote.server import ServerPlan, arguments, environment
from gagpo.agents.engines.sync import weights_synced
from gagpo.model import adapters
from gagpo.model.loading import ModelError
from gagpo.model.weights import PolicyTensors, named_tensors
from tests.agents.engines.remote.fake_server import serving
from tests.agents.engines.remote.test_servers import engine_at, expected, requests_of, tokens
from tests.agents.engines.remote.test_started import Starter
from tests.agents.engines.remote.threads import as_ranks
from tests.rejections import rejects


@pytest.fixture
def adapted(tiny):
    """A model with an adapter, and its tokenizer."""
    model, tokenizer = tiny
    adapters.inject(model, 4, 8.0, "all-linear")
    return model, tokenizer


@pytest.fixture
def servers(adapted):
    plain = adapters.merge(copy.deepcopy(adapted[0]))
    with serving(plain, adapted[1], count=2) as running:
        for fake in running:
            fake.takes_lora = True
        yield running


@pytest.fixture
def engine(adapted, servers, tmp_path):
    engine = engine_at(adapted, urls=[fake.url for fake in servers], timeout=60, folder=str(tmp_path))
    yield engine
    engine.close()


def move(model, seed=1):
    """Change the adapter, as an update does."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapters.adapter_parameters(model).values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))


def update(engine, model, seed=1):
    with weights_synced(engine, model):
        move(model, seed)


def orders(fake, word):
    return [order for order in fake.orders if word in order]


def assert_same(engine, adapted, count=6):
    requests = requests_of(adapted[1], count)
    assert tokens(engine, requests) == expected(adapted, requests)
    for request in requests:
        engine.release(request.session)


def adapter_bytes(model):
    return sum(parameter.nbytes for parameter in adapters.adapter_parameters(model).values())


def test_the_base_is_sent_once_and_the_adapter_with_every_update(adapted, engine, servers, tmp_path):
    sent = [engine.measures()["engine_bytes_sync"]]
    for seed in range(3):
        update(engine, adapted[0], seed)
        sent.append(engine.measures()["engine_bytes_sync"])
        assert_same(engine, adapted)
    all_weights = sum(tensor.nbytes for _, tensor in adapters.base_tensors(adapted[0]))
    assert all(adapter_bytes(adapted[0]) <= size < 2 * adapter_bytes(adapted[0]) + 10_000 for size in sent[1:])
    assert sent[0] > all_weights > 2 * sent[1]
    for fake in servers:
        assert orders(fake, "finish") == ["/finish_weight_update"]
        assert len(orders(fake, "/load_lora")) == 4 and len(orders(fake, "unload_lora")) == 3
        assert len({body["model"] for body in fake.asked}) == 4 and len(fake.adapters) == 1
    files = [path.name for path in tmp_path.rglob("*.safetensors")]
    assert files == ["adapter_model.safetensors"]


def test_a_server_that_loads_no_adapters_gets_them_merged(adapted, servers, tmp_path, caplog):
    servers[0].takes_lora = False
    engine = engine_at(adapted, urls=[fake.url for fake in servers], timeout=60, folder=str(tmp_path))
    for seed in range(2):
        update(engine, adapted[0], seed)
        assert_same(engine, adapted)
    assert engine.measures()["engine_servers"] == 2
    assert len(orders(servers[0], "finish")) == 4 and len(orders(servers[1], "finish")) == 1  # the base was one of four
    assert len(orders(servers[0], "lora")) == 1
    (line,) = caplog.messages
    assert line.startswith(f"the vLLM server {servers[0].url} gets the adapter merged into all weights: http")
    engine.close()


def test_a_restarted_server_gets_the_base_again(adapted, engine, servers):
    update(engine, adapted[0])
    servers[0].restarted()
    assert_same(engine, adapted)
    assert engine.measures()["engine_servers"] == 1
    update(engine, adapted[0], 2)
    assert engine.measures()["engine_servers"] == 2
    assert_same(engine, adapted)
    assert [len(orders(fake, "finish")) for fake in servers] == [2, 1]


def test_a_server_that_dies_in_an_update_is_left_out(adapted, engine, servers):
    servers[1].die()
    update(engine, adapted[0])
    assert engine.measures()["engine_servers"] == 1
    assert_same(engine, adapted, 4)


def test_a_server_that_does_not_apply_the_adapter_is_refused(adapted, engine, servers):
    servers[1].deaf = True
    with rejects(ModelError, "log-probabilities", where=f"the vLLM server {servers[1].url}"):
        update(engine, adapted[0])


def test_weights_that_are_no_policys_are_sent_whole(adapted, engine, servers):
    move(adapted[0])
    engine.load_weights(named_tensors(adapted[0]))
    assert_same(engine, adapted)
    assert all("model" not in fake.asked[-1] for fake in servers)
    update(engine, adapted[0], 2)  # the base is lost, and sent again
    assert_same(engine, adapted)
    assert [len(orders(fake, "finish")) for fake in servers] == [3, 3]


def test_ranks_share_servers_that_load_adapters(adapted, servers, tmp_path):
    """Three ranks at two servers, one of which loads no adapters: each is updated by one rank."""
    servers[1].takes_lora = False
    together = threading.Barrier(3)

    def sample(peers):
        options = engine_options("vllm", {"urls": [fake.url for fake in servers], "folder": str(tmp_path)})
        engine = VLLMServerEngine(EngineInputs(*adapted, peers=peers), options)
        engine.start()
        try:
            together.wait(30)
            if peers.rank == 0:
                move(adapted[0])
            together.wait(30)
            engine.load_weights(PolicyTensors(adapted[0]))
            return tokens(engine, requests_of(adapted[1], 4))
        finally:
            together.wait(30)
            engine.close()

    assert as_ranks(3, sample) == [expected(adapted, requests_of(adapted[1], 4))] * 3
    assert len(orders(servers[0], "/load_lora")) == 2 and len(orders(servers[1], "/load_lora")) == 1


def test_started_servers_load_adapters_and_a_family_without_them_gets_them_merged(adapted, caplog):
    starter = Starter(adapters.merge(copy.deepcopy(adapted[0])), adapted[1])
    options = engine_options("vllm", {"replicas": 1, "timeout": 60, "health_timeout": 60})
    engine = VLLMServerEngine(EngineInputs(*adapted), options, start_server=starter)

    def refuses(self):
        if self.plan.max_lora_rank is not None:
            raise ModelError("a vLLM server ended while it started: ValueError: X does not support LoRA yet.")
        plain_start(self)

    started_class = type(starter(engine._plans[0], None))
    starter.made.clear()
    plain_start, started_class.start = started_class.start, refuses
    try:
        engine.start()
        assert [started.plan.max_lora_rank for started in starter.made] == [8, None]
        assert "does not support LoRA" in caplog.messages[0]
        update(engine, adapted[0])
        assert_same(engine, adapted)
    finally:
        started_class.start = plain_start
        engine.close()
        starter.close()


def test_a_colocated_server_that_holds_the_base_keeps_it_while_it_sleeps(adapted):
    starter = Starter(adapters.merge(copy.deepcopy(adapted[0])), adapted[1])
    options = engine_options("vllm", {"placement": "colocated", "timeout": 60, "health_timeout": 60})
    engine = VLLMServerEngine(EngineInputs(*adapted), options, start_server=lambda plan, log: lora(starter(plan, log)))

    def lora(started):
        start = started.start

        def start_with_lora():
            start()
            started.fake.takes_lora = True

        started.start = start_with_lora
        return started

    engine.start()
    update(engine, adapted[0])
    assert_same(engine, adapted)
    assert orders(starter.made[0].fake, "sleep") == ["/sleep?level=1"]
    engine.close()
    starter.close()


def test_the_servers_command_enables_adapters_of_their_rank(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "num_hidden_layers": 1}')
    plan = ServerPlan(str(tmp_path), devices=(0,), max_lora_rank=max_rank(24))
    line = " ".join(arguments(plan))
    assert "--enable-lora --max-loras 1 --max-lora-rank 32" in line
    assert environment(plan)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    plain = ServerPlan(str(tmp_path), devices=(0,))
    assert "lora" not in " ".join(arguments(plain)) and "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in environment(plain)
    assert [max_rank(rank) for rank in (1, 2, 8, 9, 512, 513)] == [1, 8, 8, 16, 512, None]
