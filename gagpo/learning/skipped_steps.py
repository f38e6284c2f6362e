"""Optimiser steps that are skipped because their loss or gradient is not finite.

One bad batch need not end a run of hours, and its step is skipped before the weights change. Several in a row mean that
something is wrong with the weights or the settings. Weights that are not finite cannot be skipped: they are changed.
"""

from __future__ import annotations

from gagpo.base.errors import GagpoError

MAX_NONFINITE_STEPS = 3  # in a row, which end a run


class NonFiniteLoss(GagpoError, FloatingPointError):
    """A loss, gradient or weight is NaN or infinite; ``turns`` caused it (empty if unknown)."""

    def __init__(self, message: str, turns: list[int]):
        super().__init__(message)
        self.turns = turns


class NonFiniteWeights(NonFiniteLoss):
    """An optimiser step made a parameter NaN or infinite; training cannot continue."""


class SkippedSteps:
    """Counts skipped optimiser steps.

    limit: number of skipped steps in a row that ends training.
    in_a_row: skipped steps in a row, across updates.
    errors: of the current update's skipped steps.
    """

    def __init__(self, limit: int = 1):
        self.limit = limit
        self.in_a_row = 0
        self.errors: list[NonFiniteLoss] = []

    def skip(self, error: NonFiniteLoss) -> None:
        """Count a step skipped for ``error``, which is raised at the limit or if the weights are not finite."""
        self.errors.append(error)
        self.in_a_row += 1
        if isinstance(error, NonFiniteWeights) or self.limit == 1:
            raise error
        if self.in_a_row >= self.limit:
            raise NonFiniteLoss(f"{error}; {self.in_a_row} steps in a row", error.turns)

    @property
    def turns(self) -> list[int]:
        """The turns that caused the current update's skipped steps, sorted."""
        return sorted({turn for error in self.errors for turn in error.turns})
