"""StarPO-S (RAGEN, arXiv 2504.20073; RAGEN-2, 2604.06268): PPO, clip-higher, no KL, on the groups that vary."""

from tests.oracles.batch import deviation, mean_over_tokens, ppo_terms
from tests.oracles.turn_level.ppo import advantages as advantages  # the same


def loss(batch, advantages):
    return -mean_over_tokens(ppo_terms(batch, advantages, high=0.28))


def spreads(batch):
    groups = sorted({episode.group for episode in batch})
    return {group: deviation([episode.total for episode in batch if episode.group == group]) for group in groups}


def top_share(spread, share):
    """StarPO-S: so many of the groups."""
    ranked = sorted(spread, key=lambda group: -spread[group])
    return set(ranked[: max(int(share * len(spread)), 1)])


def top_sum(spread, share, slack=0.01):
    """RAGEN-2: the first groups whose deviations reach the share of their sum."""
    chosen, total = set(), 0.0
    for group in sorted(spread, key=lambda group: -spread[group]):
        if total >= share * sum(spread.values()) - slack or spread[group] == 0:
            break
        chosen.add(group)
        total += spread[group]
    return chosen
