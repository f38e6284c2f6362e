"""How fast credit and objectives are, on batches shaped like those of agents; for ``gagpo bench credit``."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gagpo.algorithms import PRESETS, Algorithm, load
from gagpo.controllers import Controllers
from gagpo.credit import AnyCredit, Turns, advantages
from gagpo.objectives import Layout, policy_loss


def batch(turns: int, seed: int = 0, group: int = 8, longest: int = 50, states: int = 40, tokens: int = 10) -> Turns:
    """About ``turns`` turns: episodes of 1 to ``longest`` turns, ``group`` per task, ``states`` states in each task."""
    rng = np.random.default_rng(seed)
    episodes = max(1, 2 * turns // (longest + 1))
    lengths_E = rng.integers(1, longest + 1, episodes)
    count = int(lengths_E.sum())
    success_E = rng.random(episodes) < 0.4
    reward_N = np.zeros(count)
    reward_N[np.cumsum(lengths_E) - 1] = 10.0 * success_E
    group_E = np.arange(episodes) // group
    episode_N = np.repeat(np.arange(episodes), lengths_E)
    return Turns(
        reward_N=reward_N,
        episode_N=episode_N,
        group_E=group_E,
        state_N=group_E[episode_N] * states + rng.integers(0, states, count),
        penalty_N=0.1 * (rng.random(count) < 0.1),
        tokens_N=rng.integers(1, 2 * tokens, count),
        truncated_E=~success_E,
        success_E=success_E,
    )


def credit_seconds(turns: int, repeats: int = 3) -> dict[str, float]:
    """Seconds each preset's credit takes on about ``turns`` turns, columns of the batch made anew: the best of some."""
    seconds = {}
    for settings in distinct_credits():
        best = np.inf
        for repeat in range(repeats):
            columns = batch(turns, seed=repeat)
            value = _value(columns, settings)
            start = time.perf_counter()
            advantages(columns, settings, value)
            best = min(best, time.perf_counter() - start)
        seconds[settings.name] = float(best)
    return seconds


def objective_ratios(tokens: int = 1_000_000, repeats: int = 5, device: str = "cpu") -> dict[str, float]:
    """Time of each preset's loss and gradient relative to a plain PPO clip on the same tokens: medians of some rounds.

    The plain clip is the textbook's, with a mean over tokens, and with the clip fraction and KL that every trainer logs.
    KL towards a reference and entropy are switched off on both sides.
    """
    columns = batch(max(1, tokens // 10))
    count = int(columns.tokens_N.sum())
    generator = torch.Generator().manual_seed(0)
    logprob_K = (-torch.rand(count, generator=generator) - 0.1).to(device)
    old_K = (logprob_K + 0.2 * torch.randn(count, generator=generator).to(device)).contiguous()
    turn_K = torch.arange(columns.turns).repeat_interleave(torch.as_tensor(columns.tokens_N))
    row_K = torch.as_tensor(columns.episode_N)[turn_K]
    layout = Layout.of(turn_K, row_K).to(device)
    advantage_K = torch.as_tensor(advantages(columns, load("gagpo").credit).per_token()).float().to(device)

    def losses() -> dict[str, Callable[[Tensor], Tensor]]:
        runs: dict[str, Callable[[Tensor], Tensor]] = {"plain": lambda new_K: plain_clip(new_K, old_K, advantage_K)}
        for name in PRESETS:
            algorithm = load(name).model_copy(update={"kl": Algorithm().kl, "entropy": 0.0})
            controls = _controls(algorithm, columns)
            runs[name] = lambda new_K, algorithm=algorithm, controls=controls: policy_loss(  # type: ignore[misc]
                new_K, old_K, advantage_K, layout, algorithm, controls=controls
            )[0]
        return runs

    runs = losses()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(_seconds(run, logprob_K))
    plain = float(np.median(times.pop("plain")))
    return {"plain_seconds": plain} | {name: float(np.median(values)) / plain for name, values in times.items()}


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
    """What ``gagpo bench credit`` reports.

    ``seconds``: each credit on ``turns`` turns; ``seconds_tenfold``: on ten times as many; ``ratio``: each preset's loss
    and gradient on ``tokens`` tokens, relative to a plain PPO clip (its seconds are ``plain_seconds``).
    """
    return {
        "seconds": credit_seconds(turns, repeats),
        "seconds_tenfold": credit_seconds(10 * turns, 1),
        "ratio": objective_ratios(tokens, repeats),
    }


def distinct_credits() -> list[AnyCredit]:
    """The credits of the table, each once, with its defaults."""
    return list({(credit := load(name).credit).name: credit for name in PRESETS}.values())


def _value(columns: Turns, settings: AnyCredit) -> np.ndarray | None:
    if not settings.critic:
        return None
    return np.zeros(int(columns.tokens_N.sum()) if settings.level == "token" else columns.turns)


def _controls(algorithm: Algorithm, columns: Turns):  # type: ignore[no-untyped-def]
    controllers = Controllers(algorithm.controllers)
    if algorithm.controllers.apmpo:
        controllers.observe_batch(columns)
    return controllers.controls()


def _seconds(run: Callable[[Tensor], Tensor], logprob_K: Tensor) -> float:
    new_K = logprob_K.clone().requires_grad_()
    _wait(new_K)
    start = time.perf_counter()
    run(new_K).backward()
    _wait(new_K)
    return time.perf_counter() - start


def _wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
