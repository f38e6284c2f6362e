r"""The verifier: judges a response by a gold answer.

The stages, each in one module; the response is never evaluated as code:

1. ``extract``: find the final answer in the response (box, ``####``, "the answer is"), unless it is taken back.
2. ``spelling``: rewrite it in one spelling of LaTeX.
3. ``reading``: parse it as a number, choice, words, sequence, matrix, relation or formula (``answers``).
4. ``compare``: compare numbers, choices, words and lists of them exactly, in this process.
5. ``pool``: compare formulas with the math-verify library (``symbolic``), in processes with hard deadlines. An
   answer left unevaluated (``unfinished``) is wrong, or the question would be its own answer.
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
from gagpo.envs.math.verify.spelling.units import in_kelvin


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
        return read(in_kelvin(gold, gold))
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
            self._pool = VERIFIERS.take(self)
            self._shares = True
        return self._pool

    def close(self) -> None:
        """Release the shared pool, which ends with its last user. Safe to call twice."""
        if self._shares:
            self._pool = None
            self._shares = False
            VERIFIERS.release(self)

    def extract(self, gold: str, response: str) -> Extraction | None:
        """The final answer of ``response`` to the question whose gold answer is ``gold``, or None."""
        return extract(response, choices=isinstance(read_gold(gold), Choice))

    def verify(self, gold: str, response: str) -> Verdict:
        """Judge the final answer of ``response``; raises :class:`GoldError`."""
        gold_answer = read_gold(gold)
        extraction = self.extract(gold, response)
        if extraction is None:
            return Verdict("no_answer")
        try:
            prediction = read(in_kelvin(extraction.text, gold))
        except Unreadable:
            return Verdict("unparsable", extraction.text, extraction.method, extraction.text[:80])
        try:
            reason: Reason
            if same(gold_answer, prediction, needs_algebra):
                reason = "match"
            else:
                reason = "mismatch"
        except NeedsAlgebra:
            reason = self.pool.compare(gold, extraction.text)
        return Verdict(reason, extraction.text, extraction.method, canonical(prediction))
