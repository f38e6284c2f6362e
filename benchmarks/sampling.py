"""Tokens per second of this suite's sampler, vLLM's CPU build and ``transformers.generate``: one model, one thread.

    .venv-vllm/bin/python -m benchmarks.sampling data/models/smollm2-135m [--episodes 64] [--turns 4] [--tokens 16]

``--episodes`` conversations in groups of eight begin alike and then differ; each turn reads what was said and sampled
before, and 40 tokens more, and samples ``--tokens`` tokens. That is what a rollout asks of an engine. ``generate``
reads every prompt anew. Each side plays in a process of its own, all take turns, and processor seconds of the medians
of ``--rounds`` rounds count. ``make test-vllm-environment`` makes the environment that has vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

TASK, SEEN = 110, 40  # tokens of the first prompt, and of each later observation
GROUP = 8
SIDES = ("ours", "vllm", "generate")
GOAL = 1.0  # times vLLM's rate

Sampler = Callable[[list[list[int]], int], list[list[int]]]


def ours(model: str, dtype: str) -> Sampler:
    from gagpo.agents.engines.base import Request, Sampling
    from gagpo.agents.setup import make_engine
    from gagpo.model.loading import load_model, load_tokenizer

    engine = make_engine("transformers", load_model(model), load_tokenizer(model), dtype=dtype)
    engine.stops = []  # every response has equally many tokens

    def sample(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        requests = [Request(i, np.array(ids, np.int32), i) for i, ids in enumerate(prompts)]
        return [one.ids.tolist() for one in engine.generate(requests, Sampling(1.0, tokens))]

    return sample


def vllm(model: str, dtype: str) -> Sampler:
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="2", VLLM_LOGGING_LEVEL="ERROR")
    from vllm import LLM, SamplingParams

    engine = LLM(model, dtype=dtype, enforce_eager=True, max_model_len=2048, enable_prefix_caching=True)

    def sample(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0)
        found = engine.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in found]

    return sample


def generate(model: str, dtype: str) -> Sampler:
    import torch
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    def sample(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            found = policy.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, min_new_tokens=tokens, max_new_tokens=tokens
            )
        return found[:, ids.shape[1] :].tolist()

    return sample


def play(sampler: Sampler, episodes: int, turns: int, tokens: int, seed: int) -> float:
    """Processor seconds of ``turns`` turns of all episodes."""
    rng = np.random.default_rng(seed)
    firsts = rng.integers(1000, 40000, (episodes // GROUP, TASK))
    prompts = [firsts[number // GROUP].tolist() for number in range(episodes)]
    begun = time.process_time()
    for _ in range(turns):
        said = sampler(prompts, tokens)
        assert {len(one) for one in said} == {tokens}
        seen = rng.integers(1000, 40000, (episodes, SEEN)).tolist()
        prompts = [prompt + one + more for prompt, one, more in zip(prompts, said, seen, strict=True)]
    return time.process_time() - begun


def measure(options: argparse.Namespace) -> list[float]:
    """Processor seconds of one side's rounds, after one that warms up."""
    import torch

    torch.set_num_threads(1)
    sampler = globals()[options.side](options.model, options.dtype)
    play(sampler, GROUP, 1, options.tokens, seed=0)
    return [play(sampler, options.episodes, options.turns, options.tokens, 1 + n) for n in range(options.rounds)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare samplers.")
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--side", choices=SIDES, help="measure this one only, in this process")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options)), flush=True)
        return 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    seconds: dict[str, list[float]] = {}
    sampled = options.episodes * options.turns * options.tokens
    for side in SIDES:
        command = [sys.executable, "-m", "benchmarks.sampling", *sys.argv[1:], "--side", side]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=3600)
        seconds[side] = json.loads(done.stdout.splitlines()[-1])
        rates = " ".join(f"{sampled / one:8.1f}" for one in seconds[side])
        print(f"{side:9} {rates} tokens per processor second", flush=True)
    middle = {side: statistics.median(values) for side, values in seconds.items()}
    ratio = middle["vllm"] / middle["ours"]
    print(
        f"{options.dtype}: {ratio:.2f} times vLLM's rate (goal {GOAL}, {'met' if ratio >= GOAL else 'missed'}), "
        f"{middle['generate'] / middle['ours']:.2f} times that of generate"
    )
    if options.json:
        options.json.write_text(json.dumps({"dtype": options.dtype, **seconds}, indent=1) + "\n", encoding="utf-8")
    return int(ratio < GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
