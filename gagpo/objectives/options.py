"""The options of an objective: ratio level, gate, aggregation, KL, entropy and correction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gagpo.base.defaults import MAX_TOKENS
from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options, by_name

# Gates: what happens to ratio * advantage --------------------------------------------------------------------------


class Clip(Options):
    """PPO's hard clip, ``min(r A, clip(r, 1-low, 1+high) A)``. dual: for A < 0, at least ``dual * A``."""

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
    """CISPO's detached weight, ``sg[min(r, 1+high)] A logp``. TRL's ``epsilon_high`` is the bound ``1 + high``."""

    name: Literal["cispo"] = "cispo"
    high: float = Field(default=4.0, gt=0)


class Dppo(Options):
    """DPPO's trust region of probabilities, ``1[kept] sg[min(r, 20)] A logp`` (arXiv 2602.04879).

    Drops a token whose probability moved from mu to pi in the direction of its advantage by more than ``delta``. mu is
    what ratios start from: the sampler's probability as published, with ``correction=none``.

    divergence: ``tv`` is ``|pi - mu|``, ``kl`` is ``mu log(mu/pi) + (1-mu) log((1-mu)/(1-pi))``.
    delta: None for the authors' .15 (``tv``) and .05 (``kl``).
    """

    name: Literal["dppo"] = "dppo"
    divergence: Literal["tv", "kl"] = "tv"
    delta: float | None = Field(default=None, gt=0)

    @property
    def radius(self) -> float:
        """``delta`` or its default."""
        return self.delta or (0.15 if self.divergence == "tv" else 0.05)


class Likelihood(Options):
    """``A logp`` without a ratio: supervised training weighted by the advantage."""

    name: Literal["likelihood"] = "likelihood"


class Unclipped(Options):
    """The importance weight, ``r A``."""

    name: Literal["none"] = "none"


Gate = Annotated[
    Annotated[Clip | LogClip | Sapo | Cispo | Dppo | Likelihood | Unclipped, Field(discriminator="name")],
    BeforeValidator(by_name),
]


# Aggregations: how tokens are averaged -----------------------------------------------------------------------------


class TokenMean(Options):
    """Mean over all tokens of the mini-batch."""

    name: Literal["token_mean"] = "token_mean"


class SequenceMean(Options):
    """Mean over rows of the mean over their tokens."""

    name: Literal["sequence_mean"] = "sequence_mean"


class ActionMean(Options):
    """Mean over turns of the mean over their tokens."""

    name: Literal["action_mean"] = "action_mean"


class Constant(Options):
    """Token sum divided by ``rows * length`` (Dr.GRPO).

    length: tokens; None for the rollout's response limit, or the default limit without a rollout.
    """

    name: Literal["constant"] = "constant"
    length: int | None = Field(default=None, gt=0)

    @property
    def tokens(self) -> int:
        return self.length or MAX_TOKENS


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
    """Penalty ``coefficient * KL`` to the reference policy, averaged like the objective.

    estimator: with x = logp - logp_ref, ``k1`` is ``x`` (the expectation of its gradient is 0), ``k2`` is ``x^2/2``,
        ``k3`` is ``exp(-x) + x - 1``.
    """

    coefficient: float = Field(default=0.0, ge=0)
    estimator: Literal["k1", "k2", "k3"] = "k3"


# Where sampler and trainer differ -------------------------------------------------------------------------------------


class Correction(Options):
    """Correction of the difference between sampler and trainer, x = logp_trainer - logp_sampler before any update.

    Masked tokens still count in the objective's divisor. All but ``none`` start ratios from the trainer's own
    log-probabilities.

    ``none``: ratios start from the sampler's log-probabilities.
    ``recompute``: no weights.
    ``tis``: truncated importance sampling, weights each token by ``min(exp(x), cap)``.
    ``icepop``: weights tokens by ``exp(x)`` and masks those outside [low, high] (arXiv 2510.18855).
    ``sequence``: masks sequences whose geometric mean ``exp(mean x)`` is outside [low, high]; no weights.

    cap: of ``tis``.
    low, high: of ``icepop``, and of ``sequence``, where the defaults are 1/3 and 3.
    """

    name: Literal["none", "recompute", "tis", "icepop", "sequence"] = "none"
    cap: float = Field(default=2.0, gt=0)
    low: float = Field(default=0.5, ge=0, lt=1)
    high: float = Field(default=5.0, gt=1)

    @property
    def recomputes(self) -> bool:
        """Whether ratios start from the trainer's own log-probabilities."""
        return self.name != "none"

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_sequences(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("name") == "sequence":
            return {"low": 1 / 3, "high": 3.0, **value}
        return value

    @model_validator(mode="after")
    def _options_of_their_kind(self) -> Correction:
        masks = ("icepop", "sequence")
        for option, corrections in {"cap": ("tis",), "low": masks, "high": masks}.items():
            if self.name not in corrections and getattr(self, option) != type(self).model_fields[option].default:
                raise InvalidArgument(
                    f"{option} requires correction {' or '.join(corrections)} (got {self.name})", key=option
                )
        return self


class ObjectiveSettings(Options):
    """An objective.

    ratio: level of the importance ratio.
    ratio_pool: an action's or sequence's log-ratio is the ``mean`` of its tokens' (the geometric mean of their ratios)
        or their ``sum`` (the product).
    ratio_gradient: ``token`` combines the value of the action's or sequence's ratio with each token's own gradient
        (GSPO-token).
    entropy: coefficient of the entropy bonus.
    """

    ratio: Literal["token", "action", "sequence"] = "token"
    ratio_pool: Literal["mean", "sum"] = "mean"
    ratio_gradient: Literal["segment", "token"] = "segment"
    gate: Gate = Clip()
    aggregation: Aggregation = TokenMean()
    kl: Kl = Kl()
    entropy: float = Field(default=0.0, ge=0)
    correction: Annotated[Correction, BeforeValidator(by_name)] = Correction()
