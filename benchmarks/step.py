"""An iteration of training beside TRL 1.16's ``GRPOTrainer``: same model, prompts and answers' length, one thread.

    python -m benchmarks.step [--turns 1 15] [--iterations 3] [--rounds 1]
    python -m benchmarks.step --model data/models/smollm2-135m --iterations 2

An iteration is sampling, rewards and one optimiser step, in processor time. The environment is ALFWorld in small rooms,
in which every answer is taken for one of the admissible commands, so that a model of random weights walks about as any
other. One turn: 128 answers of up to 64 tokens. Many turns: 16 episodes of 15 answers of up to 8 tokens; TRL plays them
through its ``environment_factory``, and the tool call that it looks for in an answer is put there. Both begin in turn,
and the first iteration of each is left out. With ``--model`` a pretrained model takes the place of a small one of
random weights; one turn is 32 answers, and many turns are 4 episodes. The goals are a table of ``lab/speed.md``. Needs
TRL (extra ``dev``).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.requirements import require_package
from benchmarks.starters.lexicon import lexicon
from gagpo.envs.alfworld.env import ALFWorldEnv
from gagpo.envs.base import Outcome
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import parse
from gagpo.sft.small_model import ModelShape, build, save_folder
from gagpo.training.events import Event, IterationFinished
from gagpo.training.trainer import Trainer

ENV = "gagpo-bench/Wander-v0"
SHAPE = ModelShape()
TEMPLATE = (  # that of small models, and what TRL wants to see of tools
    "{% for message in messages %}{{ '<|' + ('user' if message['role'] == 'tool' else message['role']) + '|>' }}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function']['name'] }} {{ call['function']['arguments'] }}"
    "{% endfor %}{{ message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
ROWS = 16  # of a forward pass of TRL; as many tokens of ours


class Wander(ALFWorldEnv):
    """Small rooms in which any text is some admissible command, and earns something or nothing by its sum."""

    def act(self, action: str) -> Outcome:
        number = zlib.crc32(action.encode())
        commands = sorted(self._commands)
        return replace(super().act(commands[number % len(commands)]), reward=float(number % 2))

    def _outcome(self, scene: Any, text: str) -> Outcome:
        self._commands = scene.admissible_commands
        return super()._outcome(scene, text)


@dataclass(frozen=True)
class Work:
    """What an iteration plays: ``tasks`` x ``samples`` episodes of ``turns`` answers of at most ``tokens`` tokens."""

    turns: int
    tasks: int
    tokens: int
    samples: int = 8

    @property
    def kwargs(self) -> dict[str, Any]:
        return {"size": "small", "max_turns": self.turns, "counts": {"train": 64, "valid_unseen": 1}}


WORKS = {1: Work(1, 16, 64), 15: Work(15, 2, 8)}
PRETRAINED_WORKS = {1: Work(1, 4, 64), 15: Work(15, 1, 8, samples=4)}


def prepare(folder: Path, pretrained: str | None) -> str:
    """The pretrained model, or one of random weights with a tokenizer of the house's words, under one chat template."""
    if pretrained:
        model, tokenizer = load_model(pretrained), load_tokenizer(pretrained)
    else:
        env = gymnasium.make(ENV, **WORKS[15].kwargs).unwrapped
        model, tokenizer = build(SHAPE, [*lexicon(), env.reset(seed=0)[0]], seed=0)
    tokenizer.chat_template = TEMPLATE.replace("<|end|>", tokenizer.eos_token)
    save_folder(model, tokenizer, folder)
    return str(folder)


def ours(model: str, work: Work, iterations: int, folder: Path) -> list[float]:
    """Processor seconds of every iteration but the first."""
    settings = parse(
        {
            "name": "ours",
            "model": model,
            "threads": 1,
            "environment": {"id": ENV, "kwargs": work.kwargs},
            "rollout": {"tasks": work.tasks, "group_size": work.samples, "max_tokens": work.tokens, "workers": 0},
            "algorithm": {"preset": "grpo", "kl": {"coefficient": 0.0}},
            "training": {"iterations": iterations, "save_every": iterations, "save_episodes_every": 0},
            "evaluation": {"splits": ["valid_unseen"], "before": False},
            "trackers": [],
        },
        "the benchmark",
    )
    moments = []

    def report(event: Event) -> None:
        if isinstance(event, IterationFinished):
            moments.append(time.process_time())

    Trainer(RunFolder.create(folder, settings), report=report, quiet=True).run()
    return np.diff(moments).tolist()


def theirs(model: str, work: Work, iterations: int, folder: Path) -> list[float]:
    """The same of TRL."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import grpo_trainer

    from gagpo.interop.games import TextGame, rows
    from gagpo.interop.trl import environment_factory

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.response_template = {}  # TRL knows none for this template; what reads it is replaced below
    played = rows(ENV, work.kwargs, "train", work.tasks * iterations)
    many: dict[str, Any] = {}
    if work.turns > 1:
        prompts = [{"prompt": [{"role": "user", "content": ""}], **row} for row in played]
        many = {"environment_factory": environment_factory(ENV, work.kwargs)}
        grpo_trainer.parse_response = lambda _, ids, *__, **___: _called(tokenizer.decode(ids))
    else:
        game = TextGame(ENV, work.kwargs)
        texts = [game.start(row["task"], row["seed"]) for row in played]
        prompts = [{"prompt": [{"role": "user", "content": text}]} for text in texts]
        many = {"reward_funcs": lambda completions, **_: [float(zlib.crc32(str(c).encode()) % 2) for c in completions]}
    moments: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            moments.append(time.process_time())

    episodes = work.tasks * work.samples
    batch = min(ROWS, episodes)
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(model),
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=iterations,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=episodes // batch,
            num_generations=work.samples,
            max_completion_length=work.tokens if work.turns == 1 else 3000,
            max_tool_calling_iterations=work.turns - 1,
            generation_kwargs={"max_new_tokens": work.tokens},
            learning_rate=1e-6,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer,
        callbacks=[Clock()],
        **many,
    )
    trainer.train()
    return np.diff(moments).tolist()


def _called(text: str) -> dict[str, Any]:
    function = {"name": "act", "arguments": {"action": text}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def measure(turns: int, iterations: int, rounds: int, pretrained: str | None) -> dict[str, Any]:
    """Seconds of both, by round and order, and how many times as fast ours is (of the medians)."""
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    with tempfile.TemporaryDirectory() as place:
        model = prepare(Path(place) / "model", pretrained)
        work = (PRETRAINED_WORKS if pretrained else WORKS)[turns]
        for number in range(rounds):
            for order in (("ours", "theirs"), ("theirs", "ours")):
                for side in order:
                    folder = Path(place) / f"{number}-{order[0]}-{side}"
                    run = ours if side == "ours" else theirs
                    found = run(model, work, iterations, folder)
                    print(f"{turns:>3} turns  {side:7} {' '.join(f'{value:7.2f}' for value in found)} s", flush=True)
                    seconds[side] += found
    middle = {side: float(np.median(values)) for side, values in seconds.items()}
    return {"turns": turns, **seconds, "ratio": middle["theirs"] / middle["ours"]}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure an iteration beside TRL's.")
    parser.add_argument("--turns", type=int, nargs="+", choices=sorted(WORKS), default=sorted(WORKS))
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--model", help="a model folder; by default a small model of random weights")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    if options.iterations < 2:
        parser.error(f"--iterations must be at least 2, because the first is left out (got {options.iterations})")
    require_package("trl", "dev")
    results = []
    for turns in options.turns:
        found = measure(turns, options.iterations, options.rounds, options.model)
        results.append(found)
        print(f"{turns:>3} turns  {found['ratio']:.2f} times as fast", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


gymnasium.register(ENV, entry_point=Wander)  # type: ignore[arg-type]

if __name__ == "__main__":
    raise SystemExit(main())
