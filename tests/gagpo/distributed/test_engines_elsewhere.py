"""A sharded policy with vLLM servers: no rank holds a second whole model."""

import pytest
import torch

from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import sampled_from
from gagpo.model import adapters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.weights import named_tensors
from gagpo.runs.run_folder import RunFolder
from tests.agents.engines.remote.fake_server import serving
from tests.gagpo.distributed.conftest import require_close, train_in_one, train_in_two, weights, write_config


@pytest.mark.parametrize("adapted", [False, True])
def test_what_servers_are_made_on_has_names_and_no_numbers(tiny, adapted):
    model, _ = tiny
    model.lm_head.weight = model.model.embed_tokens.weight
    if adapted:
        adapters.inject(model, 4, 4.0, "all-linear")
    made = sampled_from(model, Ranks(0, 2), "bfloat16", whole=False)
    assert all(tensor.is_meta for tensor in (*made.parameters(), *made.buffers()))
    shapes = [(name, tensor.shape) for name, tensor in named_tensors(model)]
    assert [(name, tensor.shape) for name, tensor in made.named_parameters()] == shapes
    assert type(made) is type(model) and not any(one.is_meta for one in model.parameters())
    assert {tensor.dtype for tensor in made.parameters()} == {torch.bfloat16}
    whole = sampled_from(model, Ranks(0, 2), "float32")
    assert not any(one.is_meta for one in whole.parameters()) and not any(
        one.requires_grad for one in whole.parameters()
    )


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"lora": {"rank": 4, "alpha": 4.0}}], ids=["weights", "adapter"])
def test_two_ranks_with_a_server_each_train_as_one_process_with_both(tmp_path, warm_model, more):
    model, tokenizer = load_model(warm_model), load_tokenizer(warm_model)
    with serving(model, tokenizer, count=2) as fakes:
        engine = {"name": "vllm", "options": {"urls": [fake.url for fake in fakes], "health_timeout": 60.0}}
        training = {"iterations": 2, "minibatches": 2, "save_every": 100}
        config = write_config(tmp_path, warm_model, engine=engine, training=training, **more)
        train_in_one([(config, tmp_path / "one", None)])
        asked = [len(fake.asked) for fake in fakes]
        train_in_two([(config, tmp_path / "two", None)], tmp_path)
        assert all(len(fake.asked) > count for fake, count in zip(fakes, asked, strict=True))
    require_close(weights(tmp_path / "one"), weights(tmp_path / "two"), 1e-5)
    rows = RunFolder.open(tmp_path / "two").metrics()
    assert len(rows) == 2 and all(row["engine_gap"] < 1e-4 and row["engine_servers"] == 1 for row in rows)
