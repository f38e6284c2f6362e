"""The control tokens at the end of a response and in it, where sampled ids and the chat template's text meet.

Sampled ids are kept as they are and never encoded again from text, since a model may spell a word in other tokens than
the tokenizer would, and the trainer must read exactly what was sampled. So the template's text after a response is
appended to ids, and the two must not both write the end token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gagpo.agents.encoding import THOUGHT, Ids, TextEncoder
from gagpo.agents.engines.base import end_of_response, stop_tokens


class ControlTokens:
    """What a model's control tokens mean in its responses.

    end: the token that ends a demonstrated response.
    """

    def __init__(self, tokenizer: Any, encoder: TextEncoder):
        self.tokenizer = tokenizer
        self.encoder = encoder
        self.end = end_of_response(tokenizer)
        self._ends = set(stop_tokens(tokenizer))
        self._special = tuple(name for name in tokenizer.get_added_vocab() if name.strip())
        ids = {tokenizer.convert_tokens_to_ids(name): name for name in THOUGHT if name in encoder.control}
        # Marks that decoding would skip, so that a thought could not be told from the action after it.
        self._thought = {
            token: name for token, name in ids.items() if not tokenizer.decode([token], skip_special_tokens=True)
        }

    def is_ended(self, ids: Ids) -> bool:
        """Whether an end token ends these ids; others were cut at their limit, or end with a stop string."""
        return len(ids) > 0 and int(ids[-1]) in self._ends

    def text(self, ids: Ids) -> str:
        """The text of a response, with the marks of its thoughts even if they are special tokens."""
        text = ""
        begin = 0
        for position in np.flatnonzero(np.isin(ids, list(self._thought))):
            text += self.tokenizer.decode(ids[begin:position], skip_special_tokens=True)
            text += self._thought[int(ids[position])]
            begin = int(position) + 1
        return text + str(self.tokenizer.decode(ids[begin:], skip_special_tokens=True))

    def text_with_calls(self, ids: Ids) -> str:
        """The text before the end token with all special tokens, since the mark of a call may be one."""
        body = ids[:-1] if self.is_ended(ids) else ids
        return str(self.tokenizer.decode(body, skip_special_tokens=False))

    def join(self, response_ids: Ids, after: str) -> tuple[Ids, str]:
        """A response and the template's text after it, with a single end token.

        A sampled end token that the template does not write is replaced by the template's: some models end an answer
        with ``<|return|>`` and a message of the history with ``<|end|>``.
        """
        last_token = int(response_ids[-1]) if len(response_ids) else -1
        if last_token not in self._ends:  # cut at its limit: the template's end token is the first one
            return response_ids, after
        end_text = self.tokenizer.decode([last_token])
        template_text = after.lstrip()
        if template_text.startswith(end_text):
            # The sampled token stays, not the template's: its log-probability is trained on.
            return response_ids, template_text.removeprefix(end_text)
        if any(template_text.startswith(name) for name in self._special):
            return response_ids[:-1], after
        return response_ids, after
