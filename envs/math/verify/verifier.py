r"""The verifier: judges a response by a gold answer.

Numbers, choices, words and lists of them are compared in this process, formulas in a
:class:`~gagpo.envs.math.verify.pool.VerifyPool` with hard deadlines. The response is never evaluated.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

from gagpo.base.errors import GagpoError
from gagpo.envs.math.verify.answers import Answer, Choice, canonical
from gagpo.envs.math.verify.compare import NeedsAlgebra, Reason, needs_algebra, same
from gagpo.envs.math.verify.extract import Extraction, extract
from gagpo.envs.math.verify.pool import VERIFIERS
from gagpo.envs.math.verify.reading import Unreadable, read


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    reason: ``match``, ``mismatch``, ``no_answer`` (none was found), ``unparsable``, or ``timeout`` (the comparison
        exceeded its time or memory).
    answer: as extracted by ``method``.
    canonical: the answer in one spelling.
    """

    reason: Reason
    answer: str = ""
    method: str = ""
    canonical: str = ""

    @property
    def correct(self) -> bool:
        return self.reason == "match"


class Comparer(Protocol):
    """Compares answers with algebra, such as :class:`~gagpo.envs.math.verify.pool.VerifyPool`."""

    def compare(self, gold: str, prediction: str) -> Reason: ...


class GoldError(GagpoError, ValueError):
    """An unreadable gold answer."""


@functools.lru_cache(maxsize=16_384)
def read_gold(gold: str) -> Answer:
    """Read a gold answer; cached. Raises :class:`GoldError` if it is empty, too long or has unmatched braces."""
    try:
        return read(gold)
    except Unreadable as error:
        raise GoldError(f"unreadable gold answer {gold[:60]!r}: {error}") from None


class Verifier:
    r"""Judges the final answers of responses.

    pool: compares formulas; by default the shared pool of this process.

    >>> verifier = Verifier()
    >>> verifier.verify("1/2", r"so it is \boxed{0.5}")
    Verdict(reason='match', answer='0.5', method='boxed', canonical='1/2')
    >>> verifier.verify("7", r"\boxed{3 + 4}").reason, verifier.verify("7", "I cannot say.").reason
    ('mismatch', 'no_answer')
    """

    def __init__(self, pool: Comparer | None = None) -> None:
        self._pool = pool
        self._shares = False

    @property
    def pool(self) -> Comparer:
        if self._pool is None:
            self._pool, self._shares = VERIFIERS.take(self), True
        return self._pool

    def close(self) -> None:
        """Release the shared pool, which ends with its last user. Safe to call twice."""
        if self._shares:
            self._pool, self._shares = None, False
            VERIFIERS.release(self)

    def extract(self, gold: str, response: str) -> Extraction | None:
        """The final answer of ``response`` to the question whose gold answer is ``gold``, or None."""
        return extract(response, choices=isinstance(read_gold(gold), Choice))

    def verify(self, gold: str, response: str) -> Verdict:
        """Judge the final answer of ``response``; raises :class:`GoldError`."""
        wanted = read_gold(gold)
        found = self.extract(gold, response)
        if found is None:
            return Verdict("no_answer")
        try:
            given = read(found.text)
        except Unreadable:
            return Verdict("unparsable", found.text, found.method, found.text[:80])
        try:
            reason: Reason = "match" if same(wanted, given, needs_algebra) else "mismatch"
        except NeedsAlgebra:
            reason = self.pool.compare(gold, found.text)
        return Verdict(reason, found.text, found.method, canonical(given))
