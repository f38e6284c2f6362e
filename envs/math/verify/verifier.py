r"""The verifier: a gold answer and a response in, a verdict with its reason out.

Numbers, choices, words and lists of them are decided at once in this process. Formulas go to a
:class:`~gagpo.envs.math.verify.pool.VerifyPool`, which has hard deadlines. The response is never evaluated.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gagpo.base.errors import GagpoError
from gagpo.envs.math.verify.answers import Answer, Choice, canonical
from gagpo.envs.math.verify.compare import NeedsAlgebra, Reason, not_here, same
from gagpo.envs.math.verify.extract import METHODS, Extraction, check_methods, extract
from gagpo.envs.math.verify.reading import Unreadable, read


@dataclass(frozen=True)
class Verdict:
    """``reason`` says it all; ``answer`` is what was extracted by ``method``, ``canonical`` its one spelling.

    ``match``: the answer is right. ``mismatch``: it is another one. ``no_answer``: none was found. ``unparsable``: one
    was found that no reader understands. ``timeout``: comparing it took more time or memory than allowed.
    """

    reason: Reason
    answer: str = ""
    method: str = ""
    canonical: str = ""

    @property
    def correct(self) -> bool:
        return self.reason == "match"


class Comparer(Protocol):
    """What decides comparisons that need algebra: :class:`~gagpo.envs.math.verify.pool.VerifyPool` is one."""

    def compare(self, gold: str, prediction: str) -> Reason: ...


class GoldError(GagpoError, ValueError):
    """A gold answer that nothing could ever be compared with."""


@functools.lru_cache(maxsize=16_384)
def read_gold(gold: str) -> Answer:
    """The reading of a gold answer, cached; :class:`GoldError` when it is empty, too long or has unmatched braces."""
    try:
        return read(gold)
    except Unreadable as error:
        raise GoldError(f"unreadable gold answer {gold[:60]!r}: {error}") from None


class Verifier:
    r"""Verdicts on the final answers of responses.

    ``pool`` compares formulas; without one, the process-wide pool is used and started when the first formula comes.

    >>> verifier = Verifier()
    >>> verifier.verify("1/2", r"so it is \boxed{0.5}")
    Verdict(reason='match', answer='0.5', method='boxed', canonical='1/2')
    >>> verifier.verify("7", r"\boxed{3 + 4}").reason, verifier.verify("7", "I cannot say.").reason
    ('mismatch', 'no_answer')
    """

    def __init__(self, methods: Sequence[str] = METHODS, pool: Comparer | None = None) -> None:
        self.methods = check_methods(methods)
        self._pool = pool
        self._shares = False

    @property
    def pool(self) -> Comparer:
        if self._pool is None:
            from gagpo.envs.math.verify.pool import VERIFIERS

            self._pool = VERIFIERS.take(self)
            self._shares = True
        return self._pool

    def close(self) -> None:
        """Let go of the process-wide pool, which ends with its last user. Safe to call twice."""
        if self._shares:
            from gagpo.envs.math.verify.pool import VERIFIERS

            self._pool, self._shares = None, False
            VERIFIERS.release(self)

    def extract(self, gold: str, response: str) -> Extraction | None:
        """The final answer of ``response`` to the question whose gold answer is ``gold``, or None."""
        return extract(response, self.methods, choices=isinstance(read_gold(gold), Choice))

    def verify(self, gold: str, response: str) -> Verdict:
        """The verdict on the final answer of ``response``; :class:`GoldError` when ``gold`` cannot be read."""
        wanted = read_gold(gold)
        found = self.extract(gold, response)
        if found is None:
            return Verdict("no_answer")
        try:
            given = read(found.text)
        except Unreadable:
            return Verdict("unparsable", found.text, found.method, found.text[:80])
        try:
            reason: Reason = "match" if same(wanted, given, not_here) else "mismatch"
        except NeedsAlgebra:
            reason = self.pool.compare(gold, found.text)
        return Verdict(reason, found.text, found.method, canonical(given))
