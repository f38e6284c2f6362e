"""A sharded policy with vLLM servers: no rank holds a second whole model."""

import pytest
import torch

from gagpo.model import adapters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.sharding import unsharded_copy
from gagpo.model.weights import named_tensors
from gagpo.runs.run_folder import RunFolder
from tests.gagpo.distributed.conftest import require_close, train_in_one, train_in_two, weights, write_config


@pytest.mark.parametrize("adapted", [False, True])
def test_what_servers_are_made_on_has_names_and_no_numbers(tiny, adapted):
    model, _ = tiny
    model.lm_head.weight = model.model.embed_tokens.weight
    if adapted:
        adapters.inject(model, 4, 4.0, "all-linear")
    result = unsharded_copy(model, "bfloat16", with_weights=False)
    assert all(tensor.is_meta for tensor in (*result.parameters(), *result.buffers()))
    shapes = [(name, tensor.shape) for name, tensor in named_tensors(model)]
    assert [(name, tensor.shape) for name, tensor in result.named_parameters()] == shapes
    assert type(result) is type(model) and not any(parameter.is_meta for parameter in model.parameters())
    assert {tensor.dtype for tensor in result.parameters()} == {torch.bfloat16}
    full = unsharded_copy(model, "float32")
    assert not any(parameter.is_meta for parameter in full.parameters()) and not any(
        parameter.requires_grad for parameter in full.parameters()
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["weights", "adapter", "merged adapter"])
def test_two_ranks_with_a_server_each_train_as_one_process_with_both(serving, tmp_path, warm_model, how):
    model, tokenizer = load_model(warm_model), load_tokenizer(warm_model)
    more = {} if how == "weights" else {"lora": {"rank": 4, "alpha": 4.0}}
    with serving(model, tokenizer, count=2) as fakes:
        for fake in fakes:
            fake.takes_lora = how == "adapter"
        engine = {"name": "vllm", "options": {"urls": [fake.url for fake in fakes], "health_timeout": 60.0}}
        training = {"iterations": 2, "minibatches": 2, "save_every": 100}
        config = write_config(tmp_path, warm_model, engine=engine, training=training, **more)
        train_in_one([(config, tmp_path / "one", None)])
        requests = [len(fake.asked) for fake in fakes]
        train_in_two([(config, tmp_path / "two", None)], tmp_path)
        assert all(len(fake.asked) > count for fake, count in zip(fakes, requests, strict=True))
    require_close(weights(tmp_path / "one"), weights(tmp_path / "two"), 1e-5)
    rows = RunFolder.open(tmp_path / "two").metrics()
    assert len(rows) == 2 and all(row["engine_gap"] < 1e-4 and row["engine_servers"] == 1 for row in rows)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    assert all((row["engine_bytes_sync"] < parameters / 2) == (how == "adapter") for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 3])
def test_two_ranks_share_one_server_or_three(serving, tmp_path, warm_model, servers):
    model, tokenizer = load_model(warm_model), load_tokenizer(warm_model)
    with serving(model, tokenizer, count=servers) as fakes:
        options = {"urls": [fake.url for fake in fakes], "health_timeout": 60.0, "folder": str(tmp_path / "weights")}
        training = {"iterations": 2, "minibatches": 2, "save_every": 100}
        config = write_config(tmp_path, warm_model, engine={"name": "vllm", "options": options}, training=training)
        train_in_one([(config, tmp_path / "one", None)])
        before = [fake.orders.count("/finish_weight_update") for fake in fakes]
        train_in_two([(config, tmp_path / "two", None)], tmp_path)
        # As often as by one process: once per server and update, whoever samples there.
        assert [fake.orders.count("/finish_weight_update") for fake in fakes] == [2 * count for count in before]
    require_close(weights(tmp_path / "one"), weights(tmp_path / "two"), 1e-5)
    assert not list((tmp_path / "weights").iterdir())
