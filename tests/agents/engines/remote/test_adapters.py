"""Servers with LoRA enabled get the base once and then adapters; others get all weights."""

import pytest
import torch

from gagpo.agents.engines import adapters
from gagpo.agents.engines.remote.engine import VLLMServerEngine
from gagpo.agents.engines.weights import adapter_tensors, refreshed, tensors_for
from gagpo.agents.model import ModelError
from tests.agents.engines.remote.fake_server import serving
from tests.agents.engines.remote.test_servers import expected, requests_of, tokens


@pytest.fixture
def adapted(tiny):
    """A model with an adapter, and its tokenizer."""
    adapters.inject(tiny[0], 4, 8.0, "all-linear")
    return tiny


@pytest.fixture
def servers(adapted):
    plain = adapters.merge(adapters.copy_adapter(adapted[0])).requires_grad_(False)
    with serving(plain, adapted[1], count=2) as running:
        for fake in running:
            fake.takes_lora = True
        yield running


def engine_at(adapted, servers, **more):
    return VLLMServerEngine(*adapted, urls=[fake.url for fake in servers], deadline=20, silence=5, **more)


def learn(model, seed):
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapters.adapter_parameters(model).values():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=rng))


def weights_orders(fake):
    return fake.orders.count("/finish_weight_update")


def test_the_base_is_sent_once_and_then_the_adapter_alone(adapted, servers):
    engine = engine_at(adapted, servers)
    whole = engine.measures()["engine_bytes_sync"]
    for update in range(3):
        with refreshed(engine, adapted[0]):
            learn(adapted[0], update)
        requests = requests_of(adapted[1], 6, update)
        assert tokens(engine, requests) == expected(adapted, requests)
        told = engine.measures()
        assert told["engine_servers"] == 2 and told["engine_gap"] < 1e-4
        small = sum(4 * tensor.numel() for _, tensor in adapter_tensors(adapted[0]))
        assert told["engine_bytes_sync"] == small < whole / 3
    for fake in servers:
        assert weights_orders(fake) == 1 and len(fake.adapters) == 1
    engine.close()


def test_servers_without_adapters_get_all_weights(adapted, servers, caplog):
    for fake in servers:
        fake.takes_lora = False
    engine = engine_at(adapted, servers)
    assert not engine.takes_adapter and any("all weights are sent" in line for line in caplog.messages)
    learn(adapted[0], 1)
    engine.load_weights(tensors_for(engine, adapted[0]))
    requests = requests_of(adapted[1], 4)
    assert tokens(engine, requests) == expected(adapted, requests) and engine.measures()["engine_servers"] == 2
    engine.close()


def test_a_restarted_server_gets_the_base_again(adapted, servers):
    engine = engine_at(adapted, servers)
    servers[0].restarted()
    requests = requests_of(adapted[1], 6)
    assert tokens(engine, requests) == expected(adapted, requests)  # the other one answers
    assert engine.measures()["engine_servers"] == 1
    learn(adapted[0], 1)
    engine.load_weights(tensors_for(engine, adapted[0]))
    assert engine.measures()["engine_servers"] == 2 and engine.measures()["engine_gap"] < 1e-4
    servers[1].restarted()  # without a request before the next weights
    engine.load_weights(tensors_for(engine, adapted[0]))
    assert engine.measures()["engine_servers"] == 2 and engine.measures()["engine_gap"] < 1e-4
    assert [weights_orders(fake) for fake in servers] == [2, 2]
    engine.close()


def test_a_server_that_does_not_use_the_adapter_is_refused(adapted, servers):
    engine = engine_at(adapted, servers)
    learn(adapted[0], 1)
    servers[1].deaf = True
    with pytest.raises(ModelError, match=r"log-probabilities are .* away"):
        engine.load_weights(tensors_for(engine, adapted[0]))
    engine.close()


def test_a_copied_adapter_is_checked_while_the_model_trains_on(adapted, servers):
    engine = engine_at(adapted, servers)
    learn(adapted[0], 1)
    laid_out = [(name, tensor.clone()) for name, tensor in adapter_tensors(adapted[0])]
    requests = requests_of(adapted[1], 4)
    before = expected(adapted, requests)
    learn(adapted[0], 2)
    engine.load_weights(laid_out)
    assert engine.measures()["engine_gap"] < 1e-4
    assert tokens(engine, requests) == before != expected(adapted, requests)
    engine.close()


def test_a_copy_with_its_own_adapter_shares_all_other_weights(adapted):
    twin = adapters.copy_adapter(adapted[0])
    own, theirs = dict(adapted[0].named_parameters()), dict(twin.named_parameters())
    for name, parameter in theirs.items():
        assert (parameter.data_ptr() == own[name].data_ptr()) == (".lora_" not in name)
        assert own[name].requires_grad == (".lora_" in name)
