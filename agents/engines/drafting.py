"""Drafts by prompt lookup: guesses of the next tokens of a response from the tokens of its own episode.

An agent repeats names and commands that stand in its prompt, so what followed the last tokens at their latest
occurrence often follows them again. The engine reads such a draft in one forward pass with the token before it,
samples every position from the model's own distribution with the position's own random number, and keeps the tokens up
to the first that differs from the draft. A wrong draft costs time and never changes the distribution.

Source: Saxena, "Prompt Lookup Decoding" (2023). Here the sampled token, not an acceptance test, decides about a draft
(Leviathan et al., 2023), so that a response depends on its seed alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

CONTEXT_LIMIT = 3  # tokens of the longest context that is looked up
BITS = 20  # of a token id in a key: three ids fill 60 bits, which Python adds and hashes fast
MASKS = tuple((1 << BITS * length) - 1 for length in range(1, CONTEXT_LIMIT + 1))
MIN_PROBABILITY = 0.25  # that a drafted token is kept. Reading it takes 0.15 to 0.3 of the time of a token of its own


class LookupRates:
    """How often the token that followed a context at its latest occurrence follows it again, by the context's length.

    Counted for every sampled token, whether it was drafted or not.
    """

    def __init__(self) -> None:
        # As if two of three had been right: high enough to draft before anything is counted.
        self.hits = [2] * CONTEXT_LIMIT
        self.lookups = [3] * CONTEXT_LIMIT

    def count(self, length: int, hit: bool) -> None:
        """Count a lookup of a context of ``length`` tokens."""
        self.lookups[length - 1] += 1
        self.hits[length - 1] += hit

    def of(self, length: int) -> float:
        """The fraction of right tokens after contexts of ``length`` tokens."""
        return self.hits[length - 1] / self.lookups[length - 1]


class PromptLookup:
    """What followed each context of up to :data:`CONTEXT_LIMIT` tokens of an episode, at its latest occurrence.

    rates: shared by all episodes of an engine.
    """

    def __init__(self, rates: LookupRates):
        self._rates = rates
        self._following: tuple[dict[int, int], ...] = tuple({} for _ in range(CONTEXT_LIMIT))
        self._context = 0  # the last tokens as one key

    def read(self, tokens: Iterable[int], before: Iterable[int] = ()) -> None:
        """Add tokens of a prompt, which follow the tokens ``before``.

        What an earlier prompt held in their place stays: a wrong draft is harmless, and the episode may repeat it.
        """
        self._context = 0
        for token in before:
            self._context = _joined(self._context, token)
        for token in tokens:
            self._add(token)

    def sampled(self, token: int) -> None:
        """Add a sampled token, and count whether it would have been drafted."""
        length, expected = self._look(self._context)
        if length:
            self._rates.count(length, expected == token)
        self._add(token)

    def draft(self, max_tokens: int, stops: Collection[int]) -> list[int]:
        """Up to ``max_tokens`` tokens that probably follow; none of ``stops``, after which nothing is sampled."""
        tokens: list[int] = []
        context = self._context
        probability = 1.0
        while len(tokens) < max_tokens:
            length, token = self._look(context)
            if not length or token in stops:
                break
            probability *= self._rates.of(length)
            if probability < MIN_PROBABILITY:
                break
            tokens.append(token)
            context = _joined(context, token)
        return tokens

    def _add(self, token: int) -> None:
        for following, mask in zip(self._following, MASKS, strict=True):
            following[self._context & mask] = token
        self._context = _joined(self._context, token)

    def _look(self, context: int) -> tuple[int, int]:
        """The length of the longest known end of ``context`` and the token after it; length 0 if none is known."""
        for length in range(CONTEXT_LIMIT, 0, -1):
            token = self._following[length - 1].get(context & MASKS[length - 1])
            if token is not None:
                return length, token
        return 0, 0


def _joined(context: int, token: int) -> int:
    """The key of a context after one more token."""
    return (context << BITS | token) & MASKS[-1]
