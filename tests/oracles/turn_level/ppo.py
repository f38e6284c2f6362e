"""PPO with a critic (arXiv 1707.06347), over response tokens; advantages whitened over the batch."""

from tests.oracles.batch import generalised, kl_terms, mean_over_tokens, ppo_terms, whitened


def raw_advantages(batch, gamma=1.0, lam=1.0):
    numbers = []
    for episode in batch:
        rewards, values = [], []
        for turn in episode.turns:
            rewards += [0.0] * (len(turn.new) - 1) + [turn.reward - turn.penalty]
            values += turn.value
        flat = iter(generalised(rewards, values, gamma, lam))
        numbers.append([[next(flat) for _ in turn.value] for turn in episode.turns])
    return numbers


def advantages(batch, **options):
    return whitened(raw_advantages(batch, **options))


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages)) + 0.01 * mean_over_tokens(kl_terms(batch))


def value_loss(values, old_values, targets, clip=0.2):
    total = 0.0
    for value, old, target in zip(values, old_values, targets, strict=True):
        held = min(max(value, old - clip), old + clip)
        total += 0.5 * max((value - target) ** 2, (held - target) ** 2)
    return total / len(values)
