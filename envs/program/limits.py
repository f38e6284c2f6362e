"""What a program may use in one episode."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one episode.

    turns: requests that are answered.
    tokens: sampled tokens after which no request is answered.
    seconds: for the program's own work, without waiting for answers.
    first: seconds until its first request.
    next: seconds between an answer and the next request.
    """

    turns: int
    tokens: int
    seconds: float
    first: float
    next: float
