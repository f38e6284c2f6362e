"""GAGPO in one file: sample episodes, compute credit, take optimiser steps, evaluate.

python examples/loop.py

A small model that ships with the package learns household tasks in a few minutes on a CPU. The loop does in plain code
what `gagpo train alfworld-quickstart` does; the trainer adds checkpoints, several processes, servers, critics and
controllers. It is bit-equal to the trainer with `training.dtype=float32 training.target_kl=null
optimizer.scale_by_groups=false`. Shape suffixes: N turns, K response tokens, M micro-batch's response tokens.
"""

from __future__ import annotations

import numpy as np
import torch

import gagpo.envs
from gagpo.agents.agent import LanguageAgent
from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.sync import weights_synced
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_engine, make_env
from gagpo.credit import advantages, turns_for
from gagpo.credit.gagpo import Gagpo
from gagpo.data import Episode, Row, build_rows
from gagpo.envs.pool import Pool
from gagpo.envs.pool.opening import open_pool
from gagpo.eval.evaluate import EvaluatedAgent, evaluate
from gagpo.learning.packing import Packing, mini_batches, normaliser_of
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.logprobs import token_logprobs
from gagpo.objectives import ObjectiveSettings, policy_loss

SEED = 1
MODEL = "starter:alfworld"
ENVIRONMENT = "gagpo/ALFWorld-v0"
TASKS = {"size": "small", "max_turns": 15, "counts": {"train": 600, "valid_seen": 72, "valid_unseen": 72}}

GROUPS, GROUP_SIZE = 12, 8  # episodes of an iteration: 8 attempts at each of 12 tasks
MAX_TOKENS = 8  # of one response
ITERATIONS = 20
MINIBATCHES = 4  # optimiser steps of an iteration
LEARNING_RATE = 3e-4
MAX_GRAD_NORM = 1.0

# How rewards become advantages: equal states of a group share a value, TD errors are summed with GAE's weights.
CREDIT = Gagpo()
# How advantages become a loss: one ratio per action, clipped to [0.8, 1.2], each action counted once.
OBJECTIVE = ObjectiveSettings(ratio="action", gate="clip", aggregation="action_mean")


def main(iterations: int = ITERATIONS) -> torch.nn.Module:
    """Train, print the success rate of every iteration, evaluate on unseen tasks; returns the model."""
    torch.manual_seed(SEED)
    model = load_model(MODEL)
    engine = make_engine("transformers", model, load_tokenizer(MODEL))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    env = make_env(ENVIRONMENT, TASKS)
    agent = language_agent(engine, env, Sampling(temperature=1.0, max_tokens=MAX_TOKENS))
    tasks = shuffled_tasks(env.tasks("train"), iterations * GROUPS)

    with open_pool(ENVIRONMENT, TASKS, workers=0) as pool:
        for iteration in range(iterations):
            names = tasks[iteration * GROUPS : (iteration + 1) * GROUPS]
            episodes = sample(iteration, names, agent, pool)
            with weights_synced(engine, model):  # at its end, the engine gets the new weights
                learn(iteration, episodes, model, optimizer)
            success = np.mean([episode.success for episode in episodes])
            print(f"iteration {iteration + 1}: success {100 * success:.1f} %")
        evaluate_on_unseen_tasks(agent, pool, env)
    return model


def shuffled_tasks(tasks: gagpo.envs.TaskSet, count: int) -> list[str]:
    """The ids of ``count`` tasks: passes over the split, each in a random order of its own."""
    ids: list[str] = []
    epoch = 0
    while len(ids) < count:
        order = np.random.default_rng([SEED, 7, epoch]).permutation(len(tasks))
        ids += [tasks.ids[i] for i in order]
        epoch += 1
    return ids[:count]


def sample(iteration: int, names: list[str], agent: LanguageAgent, pool: Pool) -> list[Episode]:
    """``GROUP_SIZE`` episodes of every task; a turn keeps the engine's token ids and log-probabilities."""
    temperatures = [1.0] * len(names)
    jobs = group_jobs(names, GROUP_SIZE, SEED, f"iteration {iteration} round 0", temperatures)
    episodes, _ = rollout(agent, pool, jobs)
    return episodes


def learn(iteration: int, episodes: list[Episode], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Compute credit and take the optimiser steps of an iteration."""
    # Credit: one advantage per turn, from rewards and states alone. It knows nothing of tokens or models.
    turns = turns_for(episodes, CREDIT)
    credit = advantages(turns, CREDIT)

    # Rows: a conversation that only grows is one token sequence, whatever its number of turns.
    rows = build_rows(episodes)
    rng = np.random.default_rng([SEED, iteration])
    for minibatch in mini_batches(rows, MINIBATCHES, rng):
        optimizer_step(minibatch, credit.advantage_N, model, optimizer)


def optimizer_step(
    rows: list[Row], advantage_N: np.ndarray, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Accumulate the gradient of a mini-batch and take one step."""
    # Rows without an advantage have no gradient: they count in the mean, but need no forward pass.
    with_gradient = [row for row in rows if advantage_N[row.turn_K].any()]
    if not with_gradient:
        return
    normaliser = normaliser_of(rows)
    for batch in Packing(tokens=4096, trees=True).micro_batches(with_gradient):
        # Log-probabilities of the response tokens; prefixes that rows share are read once.
        logprob_M, _ = token_logprobs(model, batch, entropy="none")
        # Loss: ratios start from the policy that sampled, before this iteration's first step.
        advantage_M = torch.as_tensor(advantage_N[batch.turn_K.numpy()], dtype=torch.float32)
        loss, _ = policy_loss(logprob_M, batch.logprob_K, advantage_M, batch.layout, OBJECTIVE, normaliser)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def evaluate_on_unseen_tasks(agent: LanguageAgent, pool: Pool, env: gagpo.envs.TextEnv) -> None:
    """Print the success rate, with its 95 % interval, on tasks that training never uses."""
    evaluated = EvaluatedAgent(agent, MODEL, temperature=1.0, kwargs=TASKS)
    result, _ = evaluate(evaluated, pool, env.tasks("valid_unseen"), ENVIRONMENT)
    success = result.success
    print(f"valid_unseen: {100 * success.value:.1f} % [{100 * success.low:.1f}, {100 * success.high:.1f}]")


if __name__ == "__main__":
    main()
