"""The cells of an objective: ratio level, gate, aggregation, KL and entropy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options, by_name

LIMIT = 512
"""Response limit where nothing sets one, as in a rollout's defaults."""


# Gates: what happens to ratio * advantage --------------------------------------------------------------------------


class Clip(Options):
    """PPO's hard clip, ``min(r A, clip(r, 1-low, 1+high) A)``; ``dual``: for A < 0 never below ``dual * A``."""

    name: Literal["clip"] = "clip"
    low: float = Field(default=0.2, gt=0, le=1)
    high: float = Field(default=0.2, gt=0)
    dual: float | None = Field(default=None, gt=1)


class LogClip(Options):
    """GMPO's one-sided clip of the log-ratio: at most ``high`` for A > 0, at least ``-low`` for A < 0."""

    name: Literal["log_clip"] = "log_clip"
    low: float = Field(default=0.4, gt=0)
    high: float = Field(default=0.4, gt=0)


class Sapo(Options):
    """SAPO's sigmoid gate, ``4/tau sigmoid(tau (r-1)) A``; tau depends on the sign of A."""

    name: Literal["sapo"] = "sapo"
    positive: float = Field(default=1.0, gt=0)
    negative: float = Field(default=1.05, gt=0)


class Cispo(Options):
    """CISPO's detached weight, ``sg[min(r, 1+high)] A logp``.

    ``high`` is a radius above 1 as in every other gate, so that the weight is at most ``1 + high``. TRL's
    ``epsilon_high`` for this loss is that absolute bound.
    """

    name: Literal["cispo"] = "cispo"
    high: float = Field(default=4.0, gt=0)


class Dppo(Options):
    """DPPO's trust region of probabilities, ``1[kept] sg[min(r, 20)] A logp`` (arXiv 2602.04879).

    With the token's probabilities pi under the policy and mu where ratios start from (the sampler, as published, with
    ``correction=none``), a token is dropped that has moved too far the way its advantage pushes it: A > 0 and
    ``pi - mu > delta``, or A < 0 and ``mu - pi > delta``.

    divergence: that difference, the total variation of "this token or another" (``tv``), or their divergence
        ``mu log(mu/pi) + (1-mu) log((1-mu)/(1-pi))`` (``kl``).
    delta: how far it may go; None for the authors' .15 (``tv``) and .05 (``kl``).
    """

    name: Literal["dppo"] = "dppo"
    divergence: Literal["tv", "kl"] = "tv"
    delta: float | None = Field(default=None, gt=0)

    @property
    def radius(self) -> float:
        """``delta``, with the default of the divergence put in."""
        return self.delta or (0.15 if self.divergence == "tv" else 0.05)


class Likelihood(Options):
    """``A logp``, whatever sampled the token: supervised training on responses weighted by their advantage."""

    name: Literal["likelihood"] = "likelihood"


class Unclipped(Options):
    """The bare importance weight, ``r A``."""

    name: Literal["none"] = "none"


Gate = Annotated[
    Annotated[Clip | LogClip | Sapo | Cispo | Dppo | Likelihood | Unclipped, Field(discriminator="name")],
    BeforeValidator(by_name),
]


# Aggregations: how tokens are averaged -----------------------------------------------------------------------------


class TokenMean(Options):
    """Every token of the mini-batch counts the same."""

    name: Literal["token_mean"] = "token_mean"


class SequenceMean(Options):
    """Every sequence counts the same: mean over rows of the mean over their tokens."""

    name: Literal["sequence_mean"] = "sequence_mean"


class ActionMean(Options):
    """Every action counts the same: mean over turns of the mean over their tokens."""

    name: Literal["action_mean"] = "action_mean"


class Constant(Options):
    """Token sum over (rows * length), whatever the rows' lengths (Dr.GRPO).

    length: tokens; None follows the rollout's response limit (:meth:`gagpo.algorithms.Algorithm.resolved`), and is
    512 where there is no rollout.
    """

    name: Literal["constant"] = "constant"
    length: int | None = Field(default=None, gt=0)

    @property
    def tokens(self) -> int:
        return self.length or LIMIT


class Geometric(Options):
    """Geometric mean of the gated ratios of a sequence or action, times its advantage; mean over those (GMPO)."""

    name: Literal["geometric"] = "geometric"
    per: Literal["sequence", "action"] = "sequence"


class Power(Options):
    """Power mean of the gated ratios of a sequence or action, times its advantage; mean over those (APMPO)."""

    name: Literal["power"] = "power"
    per: Literal["sequence", "action"] = "sequence"
    exponent: float = Field(default=1.0, ge=0.05, le=2)


Aggregation = Annotated[
    Annotated[TokenMean | SequenceMean | ActionMean | Constant | Geometric | Power, Field(discriminator="name")],
    BeforeValidator(by_name),
]


# What is added to the objective ------------------------------------------------------------------------------------


class Kl(Options):
    """Penalty ``coefficient * KL`` towards the reference policy, averaged as the objective is.

    estimator, with x = logp - logp_ref: ``k1`` x (its expected gradient is 0), ``k2`` x²/2, ``k3`` exp(-x)+x-1.
    """

    coefficient: float = Field(default=0.0, ge=0)
    estimator: Literal["k1", "k2", "k3"] = "k3"


# Where sampler and trainer differ -------------------------------------------------------------------------------------


class Correction(Options):
    """What is done about the difference between sampler and trainer.

    With x = logp_trainer - logp_sampler of each token before the first update. ``none``: ratios start from the
    sampler's log-probabilities. ``recompute``: they start from the trainer's own; so they do with the others.
    ``token``: each token's term is weighted by ``min(exp(x), cap)``. ``icepop``: it is weighted by ``exp(x)`` within
    [low, high] and left out beyond ([.5, 5]; IcePop, arXiv 2510.18855). ``kpop``: a token is left out where the KL of
    "this token or another" between trainer and sampler is above ``bound`` nats in either direction. ``sequence``:
    sequences (rows) whose geometric mean ``exp(mean x)`` leaves [low, high] ([1/3, 3]) are left out. What is left out
    still counts in what the objective is divided by.
    """

    name: Literal["none", "recompute", "token", "icepop", "kpop", "sequence"] = "none"
    cap: float = Field(default=2.0, gt=0)
    low: float | None = Field(default=None, ge=0, lt=1)
    high: float | None = Field(default=None, gt=1)
    bound: float = Field(default=2.0, gt=0)

    @property
    def recomputes(self) -> bool:
        """Whether the trainer's own log-probabilities before the first update are needed."""
        return self.name != "none"

    @property
    def token_range(self) -> tuple[float, float] | None:
        """Between which weights a token is kept; None where all are."""
        return self._range(0.5, 5.0) if self.name == "icepop" else None

    @property
    def row_range(self) -> tuple[float, float] | None:
        """Between which geometric mean weights a sequence is kept; None where all are."""
        return self._range(1 / 3, 3.0) if self.name == "sequence" else None

    def _range(self, low: float, high: float) -> tuple[float, float]:
        return low if self.low is None else self.low, high if self.high is None else self.high

    @model_validator(mode="after")
    def _options_of_their_kind(self) -> Correction:
        both = ("icepop", "sequence")
        for option, of in {"cap": ("token",), "bound": ("kpop",), "low": both, "high": both}.items():
            if self.name not in of and getattr(self, option) != type(self).model_fields[option].default:
                raise InvalidArgument(
                    f"{option} is an option of correction {' and '.join(of)}, and the correction is {self.name}"
                )
        return self


class ObjectiveSettings(Options):
    """One objective.

    ratio: level of the importance ratio. ratio_pool: how log-ratios make an action's or sequence's one: ``mean``
    (length-normalised) or ``sum``. ratio_gradient: ``segment``, or ``token``: the value of the action's or sequence's
    ratio with the gradient of each token's own (GSPO-token). entropy: coefficient of the entropy bonus. correction:
    what is done where the sampler's log-probabilities are not the trainer's.
    """

    ratio: Literal["token", "action", "sequence"] = "token"
    ratio_pool: Literal["mean", "sum"] = "mean"
    ratio_gradient: Literal["segment", "token"] = "segment"
    gate: Gate = Clip()
    aggregation: Aggregation = TokenMean()
    kl: Kl = Kl()
    entropy: float = Field(default=0.0, ge=0)
    correction: Annotated[Correction, BeforeValidator(by_name)] = Correction()
