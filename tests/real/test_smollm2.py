"""A real pretrained model: SmolLM2-135M-Instruct, fetched from the package index, through every part of the suite.

`make test-real` runs these; elsewhere they are skipped.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
import yaml

from gagpo.agents.agent import ExpertAgent
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import make_context, make_engine, make_env
from gagpo.envs.pool.opening import open_pool
from gagpo.eval.models import evaluate
from gagpo.model import pretrained, starters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.pretrained import FetchError
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.sft.run import sft
from gagpo.training.export import export
from tests.gagpo.training.resuming import require_equal
from tests.gagpo.training.test_trainer import run, start, wait_for_rows

pytestmark = pytest.mark.skipif("GAGPO_REAL" not in os.environ, reason="needs a download of 94 MB: make test-real")

NAME = "smollm2-135m"
GAMES = {"size": "small", "max_turns": 10, "counts": {"train": 20, "valid_seen": 4, "valid_unseen": 4}}
CONFIG = {
    "name": "real",
    "model": NAME,
    "environment": {"id": "gagpo/ALFWorld-v0", "kwargs": GAMES},
    "rollout": {"tasks": 2, "group_size": 2, "max_tokens": 8},
    "invalid_action_penalty": 0.1,  # few episodes succeed after ten steps of SFT: it learns from refused actions
    "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}},
    "optimizer": {"learning_rate": 1e-4},
    "training": {"iterations": 2, "save_every": 1, "microbatch_tokens": 1024, "ema": False, "best_metric": None},
    "evaluation": {"splits": ["valid_unseen"], "tasks": 2, "before": False},
}


@pytest.fixture(scope="module")
def folder():
    try:
        return pretrained.get(NAME)
    except FetchError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def taught(folder, tmp_path_factory):
    """The model after ten steps of SFT."""
    mktemp = tmp_path_factory.mktemp("taught")
    (mktemp / "sft.yaml").write_text(yaml.safe_dump({**CONFIG, "model": str(mktemp / "model")}))
    changes = [f"sft.base_model={NAME}", "sft.steps=10", "sft.batch=4", "sft.episodes=40", "training.dtype=bfloat16"]
    return sft(load(mktemp / "sft.yaml", changes), quiet=True)


ADAPTERS = [name for name in starters.names() if starters.find(name).base is not None]


@pytest.mark.skipif(not ADAPTERS, reason="no adapter ships with the package")
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_shipped_adapter_is_better_than_chance(folder, name):
    games = {"size": "alfred", "seed": 7, "max_turns": 30, "counts": {"train": 0, "valid_unseen": 12}}
    trained = evaluate(f"starter:{name}", split="valid_unseen", kwargs=games, tasks=12, workers=0, quiet=True)
    assert trained.successes >= 9  # random actions win at most one


@pytest.fixture
def config(taught, tmp_path):
    def write(**changes):
        path = tmp_path / "real.yaml"
        path.write_text(yaml.safe_dump({**CONFIG, "model": str(taught), **changes}))
        return path

    return write


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(NAME), load_tokenizer(NAME)


def greedy(model, tokenizer, text, count):
    """The answer of ``transformers.generate``."""
    chat = [{"role": "user", "content": text}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
    with torch.inference_mode():
        out = model.generate(ids, max_new_tokens=count, do_sample=False)
    return ids[0].numpy().astype(np.int32), out[0, ids.shape[1] :].numpy()


def test_it_knows_the_capital_of_france_and_our_engine_says_the_same(folder, loaded):
    from transformers import AutoModelForCausalLM

    model, tokenizer = loaded
    from_pretrained = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    prompt, expected = greedy(from_pretrained, tokenizer, "What is the capital of France?", 16)
    engine = make_engine("transformers", model, tokenizer)
    (answer,) = engine.generate([Request(0, prompt, 0)], Sampling(temperature=0, max_tokens=16))
    assert "Paris" in tokenizer.decode(answer.ids)
    assert answer.ids.tolist() == expected[: len(answer.ids)].tolist()


def test_prompts_of_ten_turns_are_the_tokens_that_were_read_and_written(loaded):
    _, tokenizer = loaded
    env = make_env("gagpo/ALFWorld-v0", GAMES)
    context = make_context(tokenizer, env)
    task = env.tasks("train").ids[0]
    with open_pool("gagpo/ALFWorld-v0", {**GAMES, "expert": True}) as pool:
        ((episode,), _) = rollout(ExpertAgent(), pool, group_jobs([task], 1, seed=1))
    turns, chat = [], []
    for turn in (episode.turns * 10)[:10]:
        prompt_ids = context.prompt(turns, turn.observation)
        turn = replace(turn, prompt_ids=prompt_ids, response_ids=context.response(turn.response))
        turns.append(turn)
        chat.append({"role": "user", "content": turn.observation})
        written = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(turn.prompt_ids) == written
        chat.append({"role": "assistant", "content": turn.response})
        if len(turns) > 1:
            before = np.concatenate([turns[-2].prompt_ids, turns[-2].response_ids])
            assert np.array_equal(turn.prompt_ids[: len(before)], before)


def test_the_sampler_has_the_trainers_log_probabilities(config, tmp_path):
    folder = run(config(), tmp_path / "run", "training.iterations=1", "algorithm.correction=recompute")
    (row,) = folder.metrics()
    assert row["mismatch_kl"] < 1e-5 and row["updates"] == 1
    path = next((folder.path / "episodes").glob("*.jsonl"))
    for line in path.read_text().splitlines():
        for turn in json.loads(line)["turns"]:
            assert np.allclose(turn.get("tokens", {}).get("ratio", []), 1, atol=1e-3)


def test_ten_steps_of_sft_teach_the_commands_and_are_read_by_transformers(taught):
    from transformers import AutoModelForCausalLM

    assert [item["step"] for item in json.loads((taught / "sft.json").read_text())["measured"]] == [10]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(taught), load_tokenizer(str(taught))
    _, answer = greedy(model, tokenizer, "You arrive at table 1. On it, you see a mug 1.", 8)
    assert tokenizer.decode(answer).split()[0] in ("go", "take", "open", "look", "put", "move", "examine", "use")


def test_a_killed_run_ends_bit_equal(config, tmp_path):
    full = run(config(), tmp_path / "whole")
    process = start(config(), tmp_path / "runs")
    killed = tmp_path / "runs" / "real"
    wait_for_rows(killed / "metrics.jsonl", 1, process, seconds=600)
    process.kill()
    process.communicate(timeout=60)
    resumed = start(None, tmp_path / "runs", "--resume", killed)
    output, _ = resumed.communicate(timeout=900)
    assert resumed.returncode == 0, output
    require_equal(RunFolder.open(killed), full)


def test_an_exported_adapter_is_read_by_peft_from_elsewhere(config, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    folder = run(config(lora={"rank": 4}), tmp_path / "run", "training.iterations=1")
    adapter = export(str(folder.path), tmp_path / "adapter", adapter=True)
    merged = export(str(folder.path), tmp_path / "merged")
    monkeypatch.chdir("/")
    merge_and_unload = peft.AutoPeftModelForCausalLM.from_pretrained(adapter).merge_and_unload()
    from_pretrained = transformers.AutoModelForCausalLM.from_pretrained(merged)
    ids = torch.arange(1000, 1040)[None]
    with torch.inference_mode():
        assert torch.allclose(merge_and_unload(ids).logits, from_pretrained(ids).logits, atol=1e-3)


def test_a_checkpoint_is_evaluated_in_bfloat16(config, tmp_path):
    half = {"name": "transformers", "dtype": "bfloat16"}
    folder = run(config(engine=half), tmp_path / "run", "training.iterations=1")
    out = tmp_path / "after.json"
    command = [sys.executable, "-m", "gagpo", "eval", str(folder.path), "--split", "valid_unseen", "--out", str(out)]
    done = subprocess.run([*command, "-q"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())
