"""AGPO, adaptive (arXiv 2605.20722), with the radius that its controller has: one per task."""

import math
import statistics

import torch

from tests.oracles.batch import deviation, kl_terms, mates, mean, mean_over_sequences, per_episode


def quantile(values, share):
    """Linear interpolation between the sorted values."""
    ordered = sorted(values)
    location = share * (len(ordered) - 1)
    below = math.floor(location)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (location - below) * (ordered[above] - ordered[below])


def dispersion_of(values, measure="std"):
    if measure == "mad":
        centre = statistics.median(values)
        return 1.4826 * statistics.median(abs(value - centre) for value in values)
    if measure == "iqr":
        return (quantile(values, 0.75) - quantile(values, 0.25)) / 1.349
    return deviation(values)


def skewness_of(values, form="authors"):
    """Bias-corrected, within ±10; the authors put the sample deviation where the textbook has the population's."""
    n = len(values)
    if n < 3 or max(values) == min(values):
        return 0.0
    third = sum((value - mean(values)) ** 3 for value in values) / n
    unit = deviation(values, ddof=1 if form == "authors" else 0)
    corrected = math.sqrt(n * (n - 1)) / (n - 2) * third / unit**3
    return min(max(corrected, -10.0), 10.0)


def advantages(batch, dispersion="std"):
    def advantage(episode):
        results = [other.total for other in mates(batch, episode)]
        if not deviation(results):
            return 0.0
        # A robust dispersion of 0 in a group that differs: the deviation instead.
        spread = dispersion_of(results, dispersion)
        return (episode.total - mean(results)) / max(spread if spread > 1e-8 else deviation(results), 1e-8)

    return per_episode(batch, advantage)


def vote_entropy(votes):
    shares = [votes.count(vote) / len(votes) for vote in set(votes)]
    return -sum(share * math.log(share) for share in shares)


def radius(
    successes,
    entropy,
    usual_entropy,
    drift,
    base=0.2,
    bounds=(0.05, 0.4),
    entropy_bounds=(0.5, 1.5),
    weights=(0.1, 1.0, 0.5, 0.0),
    dispersion="std",
    skewness="authors",
):
    """Clip radius of a task from its probe's successes, the policy's entropy on it and the running KL.

    weights: of the votes, the dispersion, the KL and the skewness.
    """
    values = [float(success) for success in successes]
    a, d, g, zeta = weights
    h = min(max(entropy / usual_entropy, entropy_bounds[0]), entropy_bounds[1])
    damping = 1 + d * dispersion_of(values, dispersion) + g * drift + zeta * abs(skewness_of(values, skewness))
    return min(max(base * h * (1 + a * vote_entropy(values)) / damping, bounds[0]), bounds[1])


def uncertainty(successes, weights=(1.0, 1.0, 0.0), dispersion="std", skewness="authors"):
    """weights: of the dispersion, the votes and the skewness."""
    values = [float(success) for success in successes]
    segments = (dispersion_of(values, dispersion), vote_entropy(values), abs(skewness_of(values, skewness)))
    return sum(weight * segment for weight, segment in zip(weights, segments, strict=True))


def temperature(successes, usual, base=1.0, gain=0.15, bounds=(0.5, 1.5), **options):
    """Sampling temperature of a task from its probe's successes and the running mean of the uncertainty."""
    raised = base * (1 + gain * (uncertainty(successes, **options) - usual) / (usual + 1e-8))
    return min(max(raised, bounds[0]), bounds[1])


def loss(batch, advantages, radii):
    """radii: by task group."""
    terms = []
    for episode, numbers in zip(batch, advantages, strict=True):
        low = radii[episode.group]
        terms.append([])
        for turn, row in zip(episode.turns, numbers, strict=True):
            ratio = torch.exp(turn.new - turn.old)
            terms[-1].append(torch.minimum(ratio * row[0], torch.clamp(ratio, 1 - low, 1 + low) * row[0]))
    return -mean_over_sequences(terms) + 0.03 * mean_over_sequences(kl_terms(batch))
