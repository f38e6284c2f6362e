"""One text in two tokenizers: where their tokens end together, and what a judgement of one says of the other's.

Between two places at which both end a token lies a chunk: the smallest part of the text whose probability both models
can tell, as the product over their own tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np


def token_ends(tokenizer: Any, ids: Sequence[int], text: str) -> list[int]:
    """Where each token ends in ``text``, which the tokens spell, in characters from its beginning.

    A token that ends within a character ends where the character does, as do tokens that spell nothing of the text.
    What the tokenizer does not spell as ``text`` has it ends with the text: it then is one chunk.
    """
    known: list[int | None] = []
    begun = before = at = (
        0  # the text up to ``at`` is spelled by ids[:before], of which ids[begun:before] are read again
    )
    for place in range(len(ids)):
        # The tokens since the last known end, read with those before them: some spell a blank only behind others.
        spelled = _decoded(tokenizer, ids[begun : place + 1])
        prefix = _decoded(tokenizer, ids[begun:before])
        new = spelled[len(prefix) :] if spelled.startswith(prefix) else None
        if new is None or new.endswith("\ufffd") or not text.startswith(new, at):
            known.append(None)
            continue
        at += len(new)
        begun, before = before, place + 1
        known.append(at)
    ends, later = [], len(text)
    for end in reversed(known):
        later = later if end is None else end
        ends.append(later)
    return ends[::-1]


def chunks_of(ends: Sequence[int], others: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The number of the chunk of each token, int64, of two tokenizations by where their tokens end.

    Each chunk has tokens of both; the last one has whatever comes after the last common end too.

    >>> [chunk.tolist() for chunk in chunks_of([2, 3, 5], [3, 4, 5])]
    [[0, 0, 1], [0, 1, 1]]
    """
    common = sorted({*ends} & {*others}) or [0]
    last = len(common) - 1
    one, other = ([min(bisect_left(common, end), last) for end in column] for column in (ends, others))
    return np.asarray(one, np.int64), np.asarray(other, np.int64)


def spread(value_C: np.ndarray, chunk_K: np.ndarray) -> np.ndarray:
    """Each chunk's value in equal parts over its tokens, float64[K]; the parts add up to it."""
    count_C = np.bincount(chunk_K, minlength=len(value_C))
    return np.asarray(value_C[chunk_K] / count_C[chunk_K], np.float64)


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    found = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(found)
