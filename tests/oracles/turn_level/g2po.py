"""G2PO (arXiv 2606.22995): values of states pooled over a task group, and the gain of each transition."""

from tests.oracles.batch import deviation, kl_terms, mates, mean, mean_over_tokens, per_turn, ppo_terms


def normalised(value, values):
    spread = deviation(values) if max(values) - min(values) > 1e-12 else 0.0
    return (value - mean(values)) / (spread + 1e-6) if spread else 0.0


def advantages(batch, gamma=0.95):
    numbers = []
    for episode in batch:
        group = mates(batch, episode)
        visits = {}
        for other in group:
            paid = sum(turn.reward for turn in other.turns)
            for t, turn in enumerate(other.turns):
                visits.setdefault(turn.state, []).append(gamma ** (len(other.turns) - t) * paid)
        value = {state: mean(observed) for state, observed in visits.items()}
        steps = []  # of the whole group: episode, state, value of what follows, fine
        for other in group:
            ending = sum(turn.reward for turn in other.turns) if other.success else 0.0
            for t, turn in enumerate(other.turns):
                after = value[other.turns[t + 1].state] if t + 1 < len(other.turns) else ending
                steps.append((other, turn.state, after, turn.penalty))
        totals = [other.total for other in group]
        gains = [after - value[state] for _, state, after, _ in steps]
        numbers.append(
            [
                normalised(episode.total, totals)
                + normalised(after - fine, [a - f for _, s, a, f in steps if s == state])
                + normalised(after - value[state], gains)
                for other, state, after, fine in steps
                if other is episode
            ]
        )
    return per_turn(batch, numbers)


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages)) + 0.01 * mean_over_tokens(kl_terms(batch))
