"""The engine frees its memory during updates, rejects requests meanwhile, and wakes with new weights."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gagpo.agents.engines import vllm as vllm_engine
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.ranks import Rank
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.engines.vllm import VLLMEngine
from gagpo.agents.engines.weights import SentBytes, named_tensors, refreshed
from gagpo.base.errors import InvalidArgument
from gagpo.runs import checkpoint as checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import Trainer

CALLS = ("sleep", "wake", "load_weights", "submit", "generate", "collect")


def watched(config, folder, *overrides):
    """A finished run, and the calls of its engine and updates in order; what an asleep engine held of its weights."""
    trainer = Trainer(RunFolder.create(folder, load(config, overrides)), quiet=True)
    calls, held = [], []

    def spy(name):
        method = getattr(trainer.sampler.engine, name)

        def called(*arguments, **named):
            calls.append(name)
            return method(*arguments, **named)

        setattr(trainer.sampler.engine, name, called)

    for name in CALLS:
        spy(name)
    update = trainer.learner.updater.update

    def updated(*arguments, **named):
        calls.append("update")
        own = trainer.sampler.engine.model.parameters()
        held.append((len(trainer.sampler.engine._slot), sum(p.untyped_storage().nbytes() for p in own)))
        return update(*arguments, **named)

    trainer.learner.updater.update = updated
    trainer.run()
    return trainer, calls, held


@pytest.mark.parametrize("average", [False, True], ids=["last", "averaged"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sleeping_engine_is_never_asked(corridor, tmp_path, dtype, average):
    config = corridor(training={"iterations": 3, "average": average}, evaluation={"tasks": 2})
    trainer, calls, held = watched(config, tmp_path / "run", f"engine.dtype={dtype}")
    around = [name for name in calls if name in ("sleep", "update", "wake", "load_weights")]
    measured = ["sleep", "wake", "load_weights"] if average else []  # of the average, at the end
    assert around == ["sleep", "update", "wake", "load_weights"] * 3 + measured
    asleep = False
    for name in calls:
        assert not asleep or name in ("update", "wake", "load_weights"), name
        asleep = name == "sleep" or (asleep and name != "load_weights")
    assert "submit" in calls or "generate" in calls
    assert all(sessions == 0 for sessions, _ in held)
    assert all((weights == 0) == (dtype == "bfloat16") for _, weights in held)
    own, learner = trainer.sampler.engine.model.parameters(), trainer.learner
    with learner.average.applied() if average else nullcontext():
        pairs = zip(own, learner.model.parameters(), strict=True)
        assert all(torch.equal(a.detach(), b.detach().to(a.dtype)) for a, b in pairs)


def test_sleep_changes_no_result_and_can_be_left_out(corridor, tmp_path):
    config = corridor(evaluation={"before": False, "tasks": 1})
    ends = []
    for sleep in ("true", "false"):
        trainer, calls, _ = watched(config, tmp_path / sleep, "engine.dtype=bfloat16", f"engine.sleep={sleep}")
        assert ("sleep" in calls) == ("wake" in calls) == (sleep == "true")
        last = checkpoints.latest(trainer.folder.path / "checkpoints").path
        ends.append((last / "model" / "model.safetensors").read_bytes())
    assert ends[0] == ends[1]


def test_an_update_that_fails_leaves_an_engine_that_answers_nobody(tiny):
    model, tokenizer = tiny
    engine = TransformersEngine(model, tokenizer, dtype="bfloat16")
    request = Request(0, np.arange(5, 9, dtype=np.int32), 0)
    with pytest.raises(RuntimeError, match="burst"), refreshed(engine, model):
        raise RuntimeError("burst")
    with pytest.raises(ValueError, match="asleep"):
        engine.load_weights(named_tensors(model))
    engine.wake()
    with pytest.raises(ValueError, match="asleep"):  # there is room for weights, and none are in it
        engine.generate([request], Sampling(max_tokens=2))
    engine.load_weights(named_tensors(model))
    assert engine.generate([request], Sampling(max_tokens=2))


def test_vllm_on_a_gpu_sleeps_deeply_and_gets_memory_that_torch_had_kept(tiny, monkeypatch):
    """No GPU: its library is played by what notes the calls."""
    model, _ = tiny
    calls = []

    def note(name):
        return lambda *_, **named: calls.append(
            (name, told) if (told := named.get("level", named.get("tags"))) else name
        )

    names = ("sleep", "wake_up", "collective_rpc", "apply_model", "reset_prefix_cache")
    engine = VLLMEngine.__new__(VLLMEngine)
    engine.llm = SimpleNamespace(**{name: note(name) for name in names})
    engine.device, engine.max_length, engine._under_way, engine._ready = SimpleNamespace(type="cuda"), 64, {}, True
    engine._asleep, engine.dtype, engine._adapter = False, "float32", None
    monkeypatch.setattr(vllm_engine, "_running", engine.llm)
    monkeypatch.setattr(torch.cuda, "empty_cache", note("empty_cache"))
    engine._parity, engine._sent = SimpleNamespace(against=lambda tensors, adapter: tensors), SentBytes()
    monkeypatch.setattr(engine, "_check_parity", note("prove"))
    with refreshed(engine, model):
        with pytest.raises(ValueError, match="asleep"):
            engine.submit([Request(0, np.arange(5, 9, dtype=np.int32), 0)], Sampling(max_tokens=2))
        calls.append("update")
    weights = ["empty_cache", ("wake_up", ["weights"]), "collective_rpc"]
    cache = ["empty_cache", ("wake_up", ["kv_cache"])]
    assert calls == [("sleep", 2), "update", *weights, "apply_model", *cache, "reset_prefix_cache", "prove"]
    engine._under_way["0"] = None
    with pytest.raises(ValueError, match="under way"):
        engine.sleep()


@pytest.mark.parametrize("rank", [0, 1, 7])
def test_vllm_of_several_ranks_samples_on_the_gpu_of_its_rank(tiny, monkeypatch, rank):
    """vLLM in this process takes the first GPU unless it is told that others have started it and their ranks."""
    told = {}
    module = SimpleNamespace(LLM=lambda folder, **named: told.update(named) or SimpleNamespace(), SamplingParams=None)
    monkeypatch.setattr(vllm_engine, "_import_vllm", lambda: module)
    monkeypatch.setattr(vllm_engine, "_end_running", lambda: None)
    monkeypatch.setattr(VLLMEngine, "load_weights", lambda self, tensors: list(tensors))
    card, whole = torch.device("cuda", rank), lambda dtype: []
    read = SimpleNamespace(device=card, precision="float32", tensors=whole)
    VLLMEngine(*tiny, place=Rank(8 + rank, 16, rank, 8), read=read)
    assert told["distributed_executor_backend"] == "external_launcher" and told["tensor_parallel_size"] == 1
    with pytest.raises(InvalidArgument, match=f"samples on this process's GPU {rank}, but the model is on cuda:9"):
        VLLMEngine(*tiny, place=Rank(rank, 16, rank, 8), read=SimpleNamespace(device=torch.device("cuda:9")))
    told.clear()
    monkeypatch.setattr(vllm_engine, "_running", None)
    VLLMEngine(*tiny, place=Rank())
    assert "distributed_executor_backend" not in told
    monkeypatch.setattr(vllm_engine, "_running", None)
