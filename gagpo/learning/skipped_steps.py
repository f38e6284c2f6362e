"""Optimiser steps left out because their loss or gradient is not finite, and when there are too many of them."""

from __future__ import annotations

from gagpo.base.errors import GagpoError


class NonFiniteLoss(GagpoError, FloatingPointError):
    """A loss, gradient or weight became NaN or infinite; ``turns`` are those it came from (empty where unknown)."""

    def __init__(self, message: str, turns: list[int]):
        super().__init__(message)
        self.turns = turns


class NonFiniteWeights(NonFiniteLoss):
    """A step was taken and left a parameter that is not finite: nothing can go on from there."""


class Skips:
    """Counts skipped steps. ``limit`` of them in a row are too many; ``row`` counts on from one update to the next.

    errors: why the steps of the present update were skipped.
    """

    def __init__(self, limit: int = 1):
        self.limit = limit
        self.row = 0
        self.errors: list[NonFiniteLoss] = []

    def begin(self) -> None:
        """A new update."""
        self.errors = []

    def taken(self) -> None:
        """A step was taken."""
        self.row = 0

    def skip(self, error: NonFiniteLoss) -> None:
        """A step was left out for ``error``, which is raised again if it is one too many, or left worthless weights."""
        self.errors.append(error)
        self.row += 1
        if isinstance(error, NonFiniteWeights) or self.limit == 1:
            raise error
        if self.row >= self.limit:
            raise NonFiniteLoss(f"{error}; {self.row} steps in a row", error.turns)

    @property
    def turns(self) -> list[int]:
        """The turns that the skipped steps of this update came from, sorted."""
        return sorted({turn for error in self.errors for turn in error.turns})
