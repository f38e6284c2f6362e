"""How fast credit and objectives are: ``python -m benchmarks.credit [--turns 100000] [--tokens 1000000]``.

Prints two tables and, with ``--json FILE``, writes the numbers. Ends with status 1 when a target is missed: 0.5 s for
any credit of 100,000 turns, ten times as many turns in at most 15 times as long (caches count for something), an
objective and its gradient within 1.2 times a plain PPO clip.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gagpo.algorithms import PRESETS, Algorithm, load
from gagpo.controllers import Controllers
from gagpo.credit import CreditSettings, Turns, advantages
from gagpo.objectives import Controls, Layout, policy_loss

SECONDS, GROWTH, RATIO = 0.5, 15.0, 1.2


def batch(turns: int, seed: int = 0, group: int = 8, longest: int = 50, states: int = 40, tokens: int = 10) -> Turns:
    """About ``turns`` turns: episodes of 1 to ``longest`` turns, ``group`` per task, ``states`` states in each task."""
    rng = np.random.default_rng(seed)
    episodes = max(1, 2 * turns // (longest + 1))
    lengths_E = rng.integers(1, longest + 1, episodes)
    count = int(lengths_E.sum())
    success_E = rng.random(episodes) < 0.4
    reward_N = np.zeros(count)
    reward_N[np.cumsum(lengths_E) - 1] = 10.0 * success_E
    tokens_N = rng.integers(1, 2 * tokens, count)
    group_E = np.arange(episodes) // group
    episode_N = np.repeat(np.arange(episodes), lengths_E)
    return Turns.of(
        reward_N=reward_N,
        episode_N=episode_N,
        group_E=group_E,
        state_N=group_E[episode_N] * states + rng.integers(0, states, count),
        penalty_N=0.1 * (rng.random(count) < 0.1),
        tokens_N=tokens_N,
        truncated_E=~success_E,
        end_state_E=group_E * states + rng.integers(0, states, episodes),
        success_E=success_E,
        action_N=rng.integers(0, 10, count),
        entropy_N=rng.random(count),
        energy_K=rng.random(int(tokens_N.sum())),
    )


def credit_seconds(turns: int, repeats: int = 3) -> dict[str, float]:
    """Processor seconds of each credit of the table on about ``turns`` turns: the best of ``repeats`` new batches."""
    seconds: dict[str, float] = {}
    for name, settings in distinct_credits().items():
        best = np.inf
        # New numbers each time, so that nothing of the last batch is at hand.
        for repeat in range(repeats):
            columns = batch(turns, seed=repeat)
            value = _value(columns, settings)
            start = time.process_time()
            advantages(columns, settings, value)
            best = min(best, time.process_time() - start)
        seconds[name] = float(best)
    return seconds


def objective_ratios(tokens: int = 1_000_000, repeats: int = 9, device: str = "cpu") -> dict[str, float]:
    """Time of each preset's loss and gradient relative to a plain PPO clip on the same tokens.

    The plain clip is the textbook's, with a mean over tokens and the clip fraction and KL that every trainer logs; KL
    towards a reference and entropy are switched off. The two are run in turns, and the median of their ratios taken,
    so that whatever else the machine does meets both.
    """
    columns = batch(max(1, tokens // 10))
    count = int(columns.tokens_N.sum())
    generator = torch.Generator().manual_seed(0)
    logprob_K = (-torch.rand(count, generator=generator) - 0.1).to(device)
    old_K = (logprob_K + 0.2 * torch.randn(count, generator=generator).to(device)).contiguous()
    turn_K = torch.arange(columns.num_turns).repeat_interleave(torch.as_tensor(columns.tokens_N))
    row_K = torch.as_tensor(columns.episode_N)[turn_K]
    layout = Layout.of(turn_K, row_K).to(device)
    advantage_K = torch.as_tensor(advantages(columns, load("gagpo").credit).per_token()).float().to(device)

    plain = partial(plain_clip, old_logprob_K=old_K, advantage_K=advantage_K)
    ratios = {}
    for name in PRESETS:
        # The two take turns, the first turn of both is not counted.
        algorithm = load(name).model_copy(update={"kl": Algorithm().kl, "entropy": 0.0})
        loss = partial(_loss, old_K, advantage_K, layout, algorithm, _controls(algorithm, columns, turn_K))
        pairs = [(_seconds(loss, logprob_K), _seconds(plain, logprob_K)) for _ in range(repeats + 1)][1:]
        ratios[name] = float(np.median([mine / other for mine, other in pairs]))
    return ratios


def _loss(
    old_K: Tensor, advantage_K: Tensor, layout: Layout, algorithm: Algorithm, controls: Controls, new_K: Tensor
) -> Tensor:
    return policy_loss(new_K, old_K, advantage_K, layout, algorithm, controls=controls)[0]


def plain_clip(logprob_K: Tensor, old_logprob_K: Tensor, advantage_K: Tensor, radius: float = 0.2) -> Tensor:
    """PPO's clipped loss, mean over tokens, as textbooks write it."""
    log_ratio_K = logprob_K - old_logprob_K
    ratio_K = torch.exp(log_ratio_K)
    held_K = torch.clamp(ratio_K, 1 - radius, 1 + radius)
    loss = -torch.minimum(ratio_K * advantage_K, held_K * advantage_K).mean()
    with torch.no_grad():
        ((ratio_K - 1.0).abs() > radius).float().mean()
        (ratio_K - 1.0 - log_ratio_K).mean()
    return loss


def bench_credit(turns: int = 100_000, tokens: int = 1_000_000, repeats: int = 3) -> dict[str, dict[str, float]]:
    """All measurements.

    ``seconds``: each credit on ``turns`` turns; ``seconds_tenfold``: on ten times as many; ``ratio``: each preset's
    loss and gradient on ``tokens`` tokens, relative to a plain PPO clip.
    """
    return {
        "seconds": credit_seconds(turns, repeats),
        "seconds_tenfold": credit_seconds(10 * turns, repeats),
        "ratio": objective_ratios(tokens, 3 * repeats),
    }


def distinct_credits() -> dict[str, CreditSettings]:
    """The credits of the table, each once, by the first preset that has it."""
    found: dict[str, CreditSettings] = {}
    for name in PRESETS:
        credit = load(name).credit
        if credit not in found.values():
            found[name] = credit
    return found


def _value(columns: Turns, settings: CreditSettings) -> np.ndarray | None:
    if not settings.critic:
        return None
    return np.zeros(int(columns.tokens_N.sum()))


def _controls(algorithm: Algorithm, columns: Turns, turn_K: Tensor) -> Controls:
    controllers = Controllers(algorithm.controllers)
    controllers.observe_batch(columns, [str(group) for group in range(columns.num_groups)], 1.0)
    return controllers.controls(torch.as_tensor(columns.group_E[columns.episode_N])[turn_K])


def _seconds(run: Callable[[Tensor], Tensor], logprob_K: Tensor) -> float:
    new_K = logprob_K.clone().requires_grad_()
    start = _clock(new_K)
    run(new_K).backward()
    return _clock(new_K) - start


def _clock(tensor: Tensor) -> float:
    """Processor time on a CPU, where other processes then do not count; on an accelerator the time it takes."""
    if not tensor.is_cuda:
        return time.process_time()
    torch.cuda.synchronize(tensor.device)
    return time.perf_counter()


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure credit and objectives.")
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    result = bench_credit(options.turns, options.tokens, options.repeats)
    print(f"{'credit':22} {options.turns:>10,} turns {10 * options.turns:>12,} turns   growth")
    missed = []
    for name, seconds in result["seconds"].items():
        tenfold = result["seconds_tenfold"][name]
        print(f"{name:22} {seconds:>14.3f} s {tenfold:>16.3f} s {tenfold / seconds:>8.1f}")
        if seconds > SECONDS * options.turns / 100_000 or tenfold > GROWTH * max(seconds, 0.01):
            missed.append(name)
    print(f"\n{'objective of':22} time relative to a plain PPO clip, {options.tokens:,} tokens")
    for name, ratio in result["ratio"].items():
        print(f"{name:22} {ratio:>8.2f}")
        if ratio > RATIO:
            missed.append(f"the objective of {name}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nall targets met")
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
