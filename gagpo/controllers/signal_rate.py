"""A learning rate that follows the signal: long steps where mini-batches agree, short ones where they do not."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from gagpo.base.errors import InvalidArgument
from gagpo.base.options import Options

State = dict[str, Any]


class SignalRate(Options):
    """Multiply the learning rate by the root of the share of a mini-batch's gradient that is signal.

    With a gradient of length |G| and noise of variance S in a mini-batch the share is |G|^2 / (|G|^2 + S). That is
    1 / (1 + B_crit / B), and the best rate of Adam grows with its root (McCandlish et al. 2018, "An empirical model of
    large-batch training", sections 2.2 and E.2). ``optimizer.learning_rate`` is then the rate of a gradient without
    noise. One iteration tells little of the share, so that the rate follows a running average.
    """

    decay: float = Field(0.9, ge=0, lt=1, description="share of the running average that an iteration keeps")
    first: float = Field(0.1, gt=0, le=1, description="the share that is assumed before anything is measured")
    least: float = Field(0.05, gt=0, le=1, description="the least that the rate is multiplied by")


class SignalRateController:
    """share: the running average of ``gradient_signal``, at most 1, below 0 by chance where all is noise."""

    def __init__(self, settings: SignalRate):
        self.settings = settings
        self.share = settings.first

    @property
    def scale(self) -> float:
        """What the learning rate is multiplied by, ``least`` to 1."""
        return max(self.settings.least, math.sqrt(min(1.0, max(0.0, self.share))))

    def observe(self, share: float | None) -> None:
        """Take in what an iteration measured; None, where fewer than two of its mini-batches taught, says nothing."""
        if share is not None:
            self.share = self.settings.decay * self.share + (1 - self.settings.decay) * min(1.0, max(-1.0, share))

    def values(self) -> dict[str, float]:
        """What to log: what the rate is multiplied by now."""
        return {"signal_scale": self.scale}

    def state_dict(self) -> State:
        return {"share": self.share}

    def load_state_dict(self, state: State) -> None:
        share = float(state["share"])
        if not -1 <= share <= 1:
            raise InvalidArgument(f"the share of a gradient that is signal is -1 to 1, got {share}")
        self.share = share
