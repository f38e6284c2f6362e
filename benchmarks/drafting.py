"""Tokens per second of the transformers engine with and without drafts, on the same episodes in one process.

    python -m benchmarks.drafting alfworld-smollm2 [webshop-smollm2 ...] [--model smollm2-135m] [--draft-tokens 6]
    python -m benchmarks.drafting alfworld-quickstart webshop-quickstart math-quickstart

Episodes are recorded first and then replayed by both engines: each does all the work of sampling a turn, then takes the
recorded tokens, so both read and write the same text. A model that the config finds on disk samples the episodes itself
at ``rollout.temperature``. Otherwise they are demonstrations as ``gagpo sft`` makes them, and ``--model`` is a model
of the size to measure. The engines take turns within every turn of the conversations, one thread each.

Printed for each config and number of conversations: tokens per CPU second without and with drafts and their ratio,
tokens of a response per forward pass that reads it, drafted tokens per such pass, and how many of them are kept.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gagpo.agents.agent import LanguageAgent
from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.transformers import DecodingRow, TransformersEngine
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.data import Episode
from gagpo.envs.pool.opening import open_pool
from gagpo.model.dtypes import NAMES, dtype_of
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.pretrained import MODELS
from gagpo.model.starters import is_starter
from gagpo.settings import RunSettings, files
from gagpo.sft.demonstrations import demonstrations, environment_of
from gagpo.sft.run import context_of

GOAL = 1.5  # times the tokens per second in ALFWorld with SmolLM2-135M


@dataclass(frozen=True)
class Replayed:
    """One turn to replay: int32 tokens of the prompt and of the response."""

    prompt_ids: np.ndarray
    response_ids: np.ndarray


@dataclass
class Work:
    """What an engine did: CPU seconds, sampled tokens, passes of a response (rows times forward passes), drafts."""

    seconds: float = 0.0
    tokens: int = 0
    passes: int = 0
    drafted: int = 0


class ReplayEngine(TransformersEngine):
    """Samples as its base class does and then takes the recorded tokens instead."""

    def __init__(self, model: torch.nn.Module, tokenizer: Any, draft_tokens: int):
        super().__init__(model, tokenizer, draft_tokens=draft_tokens)
        self.recorded: dict[int, np.ndarray] = {}  # by session
        self.work = Work()

    def _take(self, rows: list[DecodingRow], logits_KV: torch.Tensor) -> None:
        self.work.passes += len(rows)
        self.work.drafted += sum(len(row.draft) for row in rows)
        super()._take(rows, logits_KV)

    def _sample(self, rows: Sequence[DecodingRow], logits_BV: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        _, logprob_B = super()._sample(rows, logits_BV)
        token_B = np.asarray([self.recorded[row.request.session][row.count] for row in rows])
        return token_B, logprob_B

    def replay(self, turns: dict[int, Replayed], seed: int) -> None:
        """One turn of several conversations, by session."""
        self.recorded = {session: turn.response_ids for session, turn in turns.items()}
        requests = [
            Request(session, turn.prompt_ids, seed + session, max_tokens=len(turn.response_ids))
            for session, turn in turns.items()
        ]
        begun = time.process_time()
        responses = self.generate(requests, Sampling())
        self.work.seconds += time.process_time() - begun
        self.work.tokens += sum(len(response.ids) for response in responses)
        for response, turn in zip(responses, turns.values(), strict=True):
            assert response.ids.tolist() == turn.response_ids.tolist()


def episodes_of_model(settings: RunSettings, model: torch.nn.Module, tokenizer: Any, count: int) -> list[Episode]:
    """Episodes that the model samples, in groups as in training."""
    groups = -(-count // settings.rollout.group_size)
    tasks = environment_of(settings).tasks(settings.only_environment.environment.split).ids[:groups]
    jobs = group_jobs(tasks, settings.rollout.group_size, settings.seed)[:count]
    engine = TransformersEngine(model, tokenizer)
    agent = LanguageAgent(engine, context_of(settings, tokenizer), settings.rollout.sampling)
    with open_pool(settings.environment.id, settings.environment.kwargs, workers=1) as pool:
        return rollout(agent, pool, jobs)[0]


def episodes_of_expert(settings: RunSettings, tokenizer: Any, count: int) -> list[Episode]:
    """Demonstrations as SFT imitates them, with the tokens that a model would sample."""
    assert settings.sft is not None
    sft = settings.sft.model_copy(update={"episodes": 2 * count})  # unsolved ones are left out
    episodes = demonstrations(settings.model_copy(update={"sft": sft}), quiet=True).episodes[:count]
    context = context_of(settings, tokenizer)
    for episode in episodes:
        for number, turn in enumerate(episode.turns):
            prompt_ids = context.prompt(episode.turns[:number], turn.observation)
            response_ids = context.response(turn.response)
            episode.turns[number] = replace(turn, prompt_ids=prompt_ids, response_ids=response_ids)
    return episodes


def measure(
    model: torch.nn.Module, tokenizer: Any, episodes: Sequence[Sequence[Replayed]], draft_tokens: int
) -> tuple[Work, Work]:
    """Replay all conversations in lockstep, without and with drafts."""
    engines = [ReplayEngine(model, tokenizer, 0), ReplayEngine(model, tokenizer, draft_tokens)]
    for number in range(max(len(turns) for turns in episodes)):
        turns = {session: each[number] for session, each in enumerate(episodes) if number < len(each)}
        for engine in engines if number % 2 else engines[::-1]:
            for session, each in enumerate(episodes):
                if number == len(each):
                    engine.release(session)
            engine.replay(turns, seed=1000 * number)
    return engines[0].work, engines[1].work


def added(first: Work, second: Work) -> Work:
    return Work(**{name: value + getattr(second, name) for name, value in asdict(first).items()})


def compare(config: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one config, one for each number of conversations."""
    settings = files.load(config, ["rollout.workers=1"])
    samples = is_starter(settings.model) or Path(settings.model).exists()
    name = settings.model if samples else options.model
    tokenizer = load_tokenizer(name)
    model = load_model(name).to(dtype_of(options.dtype)).eval()
    count = max(options.conversations)
    if samples:
        episodes = episodes_of_model(settings, model, tokenizer, count)
    else:
        episodes = episodes_of_expert(settings, tokenizer, count)
    replayed = [
        [Replayed(turn.prompt_ids, turn.response_ids) for turn in episode.turns if len(turn.response_ids)]
        for episode in episodes
    ]
    rows = []
    for conversations in options.conversations:
        plain, drafted = Work(), Work()
        for _ in range(options.rounds):
            works = measure(model, tokenizer, replayed[:conversations], options.draft_tokens)
            plain, drafted = added(plain, works[0]), added(drafted, works[1])
        row = {
            "config": config,
            "model": name,
            "millions": round(sum(weight.numel() for weight in model.parameters()) / 1e6, 1),
            "dtype": options.dtype,
            "episodes": "sampled" if samples else "demonstrations",
            "conversations": conversations,
            "draft_tokens": options.draft_tokens,
            "plain_rate": round(plain.tokens / plain.seconds, 1),
            "draft_rate": round(drafted.tokens / drafted.seconds, 1),
            "ratio": round(plain.seconds / drafted.seconds, 3),
            "tokens_per_pass": round(drafted.tokens / drafted.passes, 2),
            "drafted_per_pass": round(drafted.drafted / drafted.passes, 2),
            "accepted": round((drafted.tokens - drafted.passes) / max(drafted.drafted, 1), 2),
        }
        print(
            f"{config:20} {row['millions']:6} M {row['dtype']:8} {conversations:4} conversations "
            f"{row['plain_rate']:8} -> {row['draft_rate']:8} tokens/s: {row['ratio']:.2f} x; "
            f"{row['tokens_per_pass']:.2f} tokens a pass, {row['drafted_per_pass']:.2f} drafted, "
            f"{row['accepted']:.0%} of them kept",
            flush=True,
        )
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare sampling with and without drafts.")
    parser.add_argument("configs", nargs="+", help="names of shipped configs, or files")
    parser.add_argument("--model", default=next(iter(MODELS)), help="where a config's model is not on disk")
    parser.add_argument("--conversations", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--dtype", choices=NAMES, default="float32")
    parser.add_argument("--draft-tokens", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also append the rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for config in options.configs:
        rows = compare(config, options)
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
