"""GAGPO (arXiv 2605.13217): grouped value proxy, TD errors, GAE over turns, one ratio per action; and its ablations."""

import torch

from tests.oracles.batch import (
    clipped,
    deviation,
    discounted,
    group_relative,
    kl_terms,
    mean,
    mean_over_actions,
    per_turn,
)


def peers(batch, episode, scope):
    """The episodes among which equal states are the same state."""
    return [other for other in batch if scope == "batch" or other.group == episode.group]


def visits(batch, episode, state, scope):
    """(episode, turn number) of every visit of a state."""
    return [
        (other, t)
        for other in peers(batch, episode, scope)
        for t, turn in enumerate(other.turns)
        if turn.state == state
    ]


def visit_value(episode, t, gamma, proxy):
    return episode.total if proxy == "outcome" else discounted(episode, gamma)[t]


def state_value(batch, episode, t, gamma, proxy, leave_one_out, scope):
    """V of the state of turn t: the mean over its visits, perhaps without this one."""
    every = visits(batch, episode, episode.turns[t].state, scope)
    remaining = [(other, location) for other, location in every if not (other is episode and location == t)]
    used = remaining if leave_one_out and remaining else every
    return mean(visit_value(other, location, gamma, proxy) for other, location in used)


def value_after_cut(batch, episode, own, gamma, proxy, scope):
    """V of the state in which a truncated episode stopped; ``own``, the last turn's, where nobody acted in it."""
    if episode.end == episode.turns[-1].state:
        return own
    every = visits(batch, episode, episode.end, scope)
    return mean(visit_value(other, location, gamma, proxy) for other, location in every) if every else own


def graph_values(batch, episode, gamma, scope, bootstrap):
    """By state: the fixed point of "mean over visits of r + gamma V(next)", by sweeping until nothing changes."""
    group = peers(batch, episode, scope)
    states = {turn.state for other in group for turn in other.turns}
    value = dict.fromkeys(states, 0.0)
    for _ in range(800):
        swept = {}
        for state in states:
            returns = []
            for other, t in visits(batch, episode, state, scope):
                turn, ahead = other.turns[t], 0.0
                if t + 1 < len(other.turns):
                    ahead = value[other.turns[t + 1].state]
                elif bootstrap and other.truncated:
                    ahead = value[other.end if other.end in states else turn.state]
                returns.append(turn.reward - turn.penalty + gamma * ahead)
            swept[state] = mean(returns)
        value = swept
    return value


def raw_deltas(batch, gamma, proxy, leave_one_out, bootstrap_truncated, scope):
    """[episode][turn]: TD errors."""
    rows = []
    for episode in batch:
        rewards = [turn.reward - turn.penalty for turn in episode.turns]
        after = 0.0
        if proxy == "graph":
            by_state = graph_values(batch, episode, gamma, scope, bootstrap_truncated)
            values = [by_state[turn.state] for turn in episode.turns]
            if bootstrap_truncated and episode.truncated:
                after = by_state.get(episode.end, values[-1])
        else:
            options = (gamma, proxy, leave_one_out, scope)
            values = [state_value(batch, episode, t, *options) for t in range(len(episode.turns))]
            if bootstrap_truncated and episode.truncated:
                after = value_after_cut(batch, episode, values[-1], gamma, proxy, scope)
        ahead = [*values[1:], after]
        rows.append([r + gamma * v - here for r, v, here in zip(rewards, ahead, values, strict=True)])
    return rows


def generalised(rows, gamma, lam):
    """[episode][turn]: GAE before any normalisation."""
    return [[sum((gamma * lam) ** k * d for k, d in enumerate(row[t:])) for t in range(len(row))] for row in rows]


def of_macro_actions(batch, raw_deltas, gamma, lam, scope):
    """[episode][turn]: one advantage for the turns from a state with several visits up to the next of such."""
    rows = []
    for episode, deltas in zip(batch, raw_deltas, strict=True):
        stretches = []
        for t, turn in enumerate(episode.turns):
            if t == 0 or len(visits(batch, episode, turn.state, scope)) > 1:
                stretches.append([])
            stretches[-1].append(deltas[t])
        row, after = [], 0.0
        for stretch in reversed(stretches):
            gained = sum(gamma**k * d for k, d in enumerate(stretch))
            after = gained + gamma ** len(stretch) * lam * after
            row = [after] * len(stretch) + row
        rows.append(row)
    return rows


def compared(batch, raw, episode, t, norm, scope):
    """The advantages that one is normalised with."""
    if norm == "batch":
        return [x for row in raw for x in row]
    if norm == "state":
        location = {id(other): number for number, other in enumerate(batch)}
        return [raw[location[id(other)]][k] for other, k in visits(batch, episode, episode.turns[t].state, scope)]
    return [x for other, row in zip(batch, raw, strict=True) if other.group == episode.group for x in row]


def normalised(batch, raw, norm, scope):
    rows = []
    for episode, numbers in zip(batch, raw, strict=True):
        rows.append([])
        for t, x in enumerate(numbers):
            group = compared(batch, raw, episode, t, norm, scope)
            # Values that are equal in exact arithmetic differ by rounding errors.
            spread = deviation(group) if max(group) - min(group) > 1e-9 else 0.0
            centre = 0.0 if norm == "scale_only" else mean(group)
            rows[-1].append((x - centre) / (spread + 1e-6) if spread else 0.0)
    return rows


def advantages(
    batch,
    gamma=0.95,
    lam=0.8,
    norm="group",
    episode_weight=0.0,
    proxy="return",
    leave_one_out=False,
    bootstrap_truncated=False,
    scope="task",
    macro_actions=False,
):
    deltas = raw_deltas(batch, gamma, proxy, leave_one_out, bootstrap_truncated, scope)
    raw = of_macro_actions(batch, deltas, gamma, lam, scope) if macro_actions else generalised(deltas, gamma, lam)
    trajectory = group_relative(batch)
    numbers = zip(raw if norm == "none" else normalised(batch, raw, norm, scope), trajectory, strict=True)
    return per_turn(batch, [[x + episode_weight * full[0][0] for x in row] for row, full in numbers])


def loss(batch, advantages, ratio_pool="mean"):
    actions = []
    for episode, numbers in zip(batch, advantages, strict=True):
        for turn, row in zip(episode.turns, numbers, strict=True):
            logs = turn.new - turn.old
            ratio = torch.exp(logs.mean()) if ratio_pool == "mean" else torch.prod(torch.exp(logs))
            actions.append(clipped(ratio, row[0], 0.2, 0.2))
    return -torch.stack(actions).mean() + 0.01 * mean_over_actions(kl_terms(batch))
