"""An engine on transformers: one cache slot per session, prompts read once, responses decoded together.

Sampling and training read the same weights with the same code here, so in float32 the log-probabilities of both agree
bit for bit, and ratios begin at 1. A separate server is faster with large models, but computes in another order.

What is cached is never believed: each prompt is compared with the tokens of its slot, and only what is equal is not
read again. So a caller that changes its history gets right responses, only later.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from gagpo.agents.engines.base import Finished, ModelEngine, Request, Response, Sampling
from gagpo.agents.engines.drafting import CONTEXT_LIMIT, LookupRates, PromptLookup
from gagpo.base.errors import InvalidArgument
from gagpo.model.adapters import merge
from gagpo.model.dtypes import dtype_of
from gagpo.model.flat.attention import forward, is_flat
from gagpo.model.flat.graphs import RecordedSteps
from gagpo.model.flat.slots import SlotCache
from gagpo.model.spans import span
from gagpo.model.weights import NamedTensor, copy_tensors

PREFILL_TOKENS = 8192  # maximum padded prompt tokens of one forward pass; more would not fill a GPU better
DRAFTED_ROWS = 32  # with more, a pass on a CPU is bound by products, and a drafted token costs as much as a sampled one
READING = 4  # decoding steps that take as long as reading prompts, where steps are recorded


class DecodingRow:
    """A response under way: ``count`` tokens are sampled, all but the last of them read.

    draft: guesses of the next tokens, read in the next forward pass after the token that is certain.
    """

    __slots__ = ("count", "draft", "ids", "logprobs", "max_tokens", "request", "stop_tokens", "temperature", "uniform")

    def __init__(self, request: Request, sampling: Sampling):
        self.request = request
        self.max_tokens = sampling.limit(request)
        self.temperature = sampling.temperature_of(request)
        # All numbers at once, from a generator of this request: the i-th token uses the i-th number, whatever else is
        # decoded with it and however the steps are cut.
        self.uniform = np.random.Generator(np.random.Philox(request.seed)).random(self.max_tokens)
        self.ids = np.zeros(self.max_tokens, np.int32)
        self.logprobs = np.zeros(self.max_tokens, np.float32)
        self.count = 0
        self.draft: list[int] = []
        # The last tokens that can spell a stop string: a token has at least one byte, and one more may begin before it.
        self.stop_tokens = max((len(text.encode()) for text in request.stop), default=0) + 1

    @property
    def read(self) -> int:
        """Tokens of prompt and response that the cache holds."""
        return len(self.request.prompt_ids) + max(self.count - 1, 0)

    def tokens(self) -> np.ndarray:
        return np.concatenate([self.request.prompt_ids, self.ids[: max(self.count - 1, 0)]])


class TransformersEngine(ModelEngine):
    """Samples from ``model`` itself if it has the given precision, else from a copy.

    Of a prompt, only what differs from the session's cached tokens is read. Live sessions fill the first slots of the
    cache, so a call for most of them reads the cache in place; a call for few gathers their slots. New requests join
    those under way at the next token; on a GPU, where decoding steps are recorded and reading is not, once those that
    wait have lost as many tokens as reading costs.

    dtype: what is sampled in (``float32`` or ``bfloat16``); that of the model if None.
    own_weights: always sample from a copy, so that the model can be trained meanwhile.
    draft_tokens: maximum tokens of a response that are drafted and read in one pass (see the module ``drafting``); 0
        for none. Responses are those without drafts up to rounding, which differs with the shape of a forward pass.
        Recorded decoding steps read one token, so a GPU drafts only where they are not recorded.
    """

    takes_stop = True

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: Any,
        max_length: int | None = None,
        *,
        dtype: str | None = None,
        own_weights: bool = False,
        draft_tokens: int = 0,
    ):
        super().__init__(model, tokenizer, max_length, dtype)
        weight = next(model.parameters())
        sampling_dtype = dtype_of(dtype) if dtype else weight.dtype
        self.shares_weights = sampling_dtype == weight.dtype and not own_weights
        if not self.shares_weights:
            self.model = merge(copy.deepcopy(model)).to(sampling_dtype).requires_grad_(False)
        self._recorded = weight.is_cuda and is_flat(model)  # whether decoding steps are
        self._steps = RecordedSteps(self.model)
        self._draft_tokens = draft_tokens
        self._lookups: dict[int, PromptLookup] = {}  # by session; empty if nothing is drafted
        self._new: list[DecodingRow] = []  # submitted, not read yet
        self._tokens_waited = 0  # that the new rows could have decoded since they were submitted
        self._rows: list[DecodingRow] = []  # being decoded
        self._finished: list[Finished] = []
        self._freed: dict[torch.UntypedStorage, int] = {}  # storages of weights freed by sleep, and their bytes
        self._clear_caches()

    def _clear_caches(self) -> None:
        """Drop what the sessions have read, with the memory that held it."""
        self._cache = SlotCache.of(self.model)
        self._steps.clear()
        self._slot: dict[int, int] = {}
        self._session: list[int] = []  # by slot
        self._cached: list[np.ndarray] = []  # by slot: the tokens it holds, without those of a response under way
        # Dropped with the caches, so that a resumed run drafts, and rounds, like one that was not killed.
        self._lookups = {}
        self._rates = LookupRates()

    def load_weights(self, tensors: Iterable[NamedTensor]) -> None:
        """Take new weights; a shared module has them already, so only the caches are dropped."""
        self._require_idle()
        if self._freed:
            raise InvalidArgument("the engine is asleep", advice="wake it before it takes weights")
        copy_tensors(self.model, tensors)
        self._ready = True
        self._clear_caches()

    def sleep(self) -> None:
        """Free the cache, and the weights if they are the engine's own copy."""
        self._require_idle()
        self._clear_caches()
        self._ready = False
        if self.shares_weights or self._freed:
            return
        # Resizing the storages frees memory but keeps the tensors, to which recorded steps and the model refer.
        storages = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in self.model.parameters()}
        self._freed = {storage: storage.nbytes() for storage in storages.values()}
        for storage in self._freed:
            storage.resize_(0)

    def wake(self) -> None:
        """Allocate the weights again, for :meth:`load_weights` to fill."""
        for storage, size in self._freed.items():
            storage.resize_(size)
        self._freed = {}
        self._ready = self._ready or self.shares_weights

    def close(self) -> None:
        """Drop what is under way and the caches."""
        self._finished = []
        self._abandon()

    def _abandon(self) -> None:
        """Drop what is under way and all caches, which may be inconsistent after an interruption."""
        self._new, self._rows = [], []
        self._clear_caches()

    @property
    def under_way(self) -> int:
        return len(self._new) + len(self._rows)

    def submit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Add requests, which are read at the next :meth:`collect`."""
        if not requests:
            return
        self._require_room(requests, sampling)
        sessions = [row.request.session for row in (*self._new, *self._rows)]
        sessions += [request.session for request in requests]
        if len(set(sessions)) != len(sessions):  # both would write into one slot of the cache
            raise InvalidArgument("two requests belong to the same session", key="session")
        self._new += [DecodingRow(request, sampling) for request in requests]

    def collect(self, timeout: float | None = None) -> list[Finished]:
        """Decode until a response is finished, or for ``timeout`` seconds; at least one token."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._finished and self.under_way:
            self._step()
            if time.monotonic() >= end:
                break
        finished, self._finished = self._finished, []
        return finished

    @torch.inference_mode()
    def release(self, session: int) -> None:
        """Drop a session's cache and its request under way."""
        self._new = [row for row in self._new if row.request.session != session]
        self._rows = [row for row in self._rows if row.request.session != session]
        try:
            self._lookups.pop(session, None)
            slot = self._slot.pop(session, None)
            if slot is None:
                return
            last_session, last_cached = self._session.pop(), self._cached.pop()
            if last_session != session:  # the last slot fills the hole
                under_way = [row.read for row in self._rows if row.request.session == last_session]
                self._cache.share(len(self._session), [slot], max([len(last_cached), *under_way]))
                self._slot[last_session] = slot
                self._session[slot] = last_session
                self._cached[slot] = last_cached
        except BaseException:
            self._abandon()
            raise

    @torch.inference_mode()
    def _step(self) -> None:
        """Sample one more token of every response under way, and the first of the new ones."""
        was_training = self.model.training
        if was_training:  # setting it on all modules with every token takes as long as a layer
            self.model.eval()
        try:
            if self._rows:
                with span("decoding"):
                    self._take(self._rows, self._advance())
            # Reading is not recorded, so it stalls all rows for READING steps: wait until new rows have lost as much.
            self._tokens_waited += len(self._new)
            if self._recorded and self._rows and self._tokens_waited < READING * len(self._rows):
                return
            new = self._new
            self._new = []
            self._tokens_waited = 0
            if new:
                self._rows = [*self._rows, *new]
                with span("reading"):
                    self._take(new, self._read(new))
        except BaseException:
            self._abandon()
            raise
        finally:
            if was_training:
                self.model.train()

    def _take(self, rows: list[DecodingRow], logits_KV: torch.Tensor) -> None:
        """Sample the next tokens of ``rows``; finished rows leave the decoding.

        logits_KV: row after row, those of the next token and of the tokens after each token of the row's draft. A token
            counts only if the tokens before it were sampled as they were drafted, so the second tokens are sampled
            after all first ones, the third after all second ones.
        """
        first_B = np.cumsum([0, *(1 + len(row.draft) for row in rows[:-1])])
        ended = set()
        active = list(range(len(rows)))
        depth = 0
        while active:
            logits_BV = logits_KV
            if len(active) < len(logits_KV):
                logits_BV = logits_KV[torch.as_tensor(first_B[active] + depth, device=self.device)]
            token_B, logprob_B = self._sample([rows[i] for i in active], logits_BV)
            stopped_B = np.isin(token_B, self.stops).tolist()
            sampled = zip(active, token_B.tolist(), logprob_B.tolist(), stopped_B, strict=True)
            active = []
            for i, token, logprob, stopped in sampled:
                if self._append(rows[i], token, logprob, stopped):
                    ended.add(id(rows[i]))
                elif rows[i].draft[depth : depth + 1] == [token]:
                    active.append(i)
            depth += 1
        if ended:
            self._rows = [row for row in self._rows if id(row) not in ended]

    def _sample(self, rows: Sequence[DecodingRow], logits_BV: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The next token of each of ``rows`` and its log-probability."""
        uniform_B = np.asarray([row.uniform[row.count] for row in rows])
        temperature_B = np.asarray([row.temperature for row in rows], np.float64)
        return sample(logits_BV, uniform_B, temperature_B)

    def _append(self, row: DecodingRow, token: int, logprob: float, stopped: bool) -> bool:
        """Add a sampled token to its response; returns whether the response is finished."""
        row.ids[row.count] = token
        row.logprobs[row.count] = logprob
        row.count += 1
        lookup = self._lookups.get(row.request.session)
        if lookup is not None:  # the last token too: later prompts repeat the response
            lookup.sampled(token)
        stopped = stopped or self._spells_stop(row)  # decoding text is slow, so a stop token decides first
        if not stopped and row.count < row.max_tokens:
            return False
        self._cache_row(row)  # the next turn's prompt extends these tokens, which are then not read again
        response = Response(row.ids[: row.count].copy(), row.logprobs[: row.count].copy(), stopped)
        self._finished.append((row.request, response))
        return True

    def _draft(self, row: DecodingRow) -> None:
        """Guess the next tokens of a response. The last token of a response is not read, and none is drafted for it."""
        lookup = self._lookups.get(row.request.session)  # None if steps were recorded when its prompt was read
        row.draft = []
        if lookup is not None and len(self._rows) <= DRAFTED_ROWS:
            row.draft = lookup.draft(min(self._draft_tokens, row.max_tokens - row.count - 1), self.stops)

    def _spells_stop(self, row: DecodingRow) -> bool:
        """Whether the last tokens of a response spell one of its stop strings."""
        if not row.request.stop:
            return False
        end = self.tokenizer.decode(row.ids[max(0, row.count - row.stop_tokens) : row.count], skip_special_tokens=False)
        return any(text in end for text in row.request.stop)

    def _cache_row(self, row: DecodingRow) -> None:
        """Note which tokens of a finished response the cache holds; its last token has not been read."""
        self._cached[self._slot[row.request.session]] = row.tokens()

    def _read(self, rows: Sequence[DecodingRow]) -> torch.Tensor:
        """Read the prompts of new rows and their drafts; returns logits as :meth:`_take` takes them.

        Of equal prompts, the one with most tokens in the cache is read and copied to the others.
        """
        slot_B, start_B = self._place(rows)
        prompts = [row.request.prompt_ids.tobytes() for row in rows]
        reader_of = {prompts[i]: int(i) for i in np.argsort(start_B, kind="stable")}
        readers = sorted(reader_of.values())
        if self._draft_tokens and not self._recorded:
            self._draft_after_prompts(rows, start_B, [reader_of[prompt] for prompt in prompts])
        logits = self._prefill([rows[i] for i in readers], slot_B[readers], start_B[readers])
        if len(readers) == len(rows):
            return logits
        copies: dict[int, list[int]] = {}
        for i, prompt in enumerate(prompts):
            if i != reader_of[prompt]:
                copies.setdefault(reader_of[prompt], []).append(i)
        for i, duplicates in copies.items():
            length = len(rows[i].request.prompt_ids) + len(rows[i].draft)
            begin = int(start_B[duplicates].min())
            self._cache.share(int(slot_B[i]), slot_B[duplicates].tolist(), length, begin)
        counts = [1 + len(rows[i].draft) for i in readers]
        first_of = dict(zip(readers, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
        firsts = [first_of[reader_of[prompt]] for prompt in prompts]
        source_K = [first + i for first, row in zip(firsts, rows, strict=True) for i in range(1 + len(row.draft))]
        return logits[torch.as_tensor(source_K, device=self.device)]

    def _draft_after_prompts(self, rows: Sequence[DecodingRow], start_B: np.ndarray, reader_B: Sequence[int]) -> None:
        """Guess the first tokens of new responses; rows that share a prompt share its reader's draft."""
        for row, start in zip(rows, start_B.tolist(), strict=True):
            lookup = self._lookups.setdefault(row.request.session, PromptLookup(self._rates))
            prompt = row.request.prompt_ids
            lookup.read(prompt[start:].tolist(), prompt[max(0, start - CONTEXT_LIMIT) : start].tolist())
            self._draft(row)
        for row, reader in zip(rows, reader_B, strict=True):
            row.draft = rows[reader].draft[: row.max_tokens - 1]

    def _place(self, rows: Sequence[DecodingRow]) -> tuple[np.ndarray, np.ndarray]:
        """A slot for every session, and how many tokens of its prompt the slot holds already."""
        slots, starts = [], []
        for row in rows:
            request = row.request
            if request.session not in self._slot:
                self._slot[request.session] = len(self._session)
                self._session.append(request.session)
                self._cached.append(np.zeros(0, np.int32))
            slot, prompt = self._slot[request.session], request.prompt_ids
            same = min(len(self._cached[slot]), len(prompt) - 1)  # the last token is always read: its logits are needed
            differs = np.flatnonzero(self._cached[slot][:same] != prompt[:same])
            starts.append(int(differs[0]) if len(differs) else same)
            slots.append(slot)
        longest = max(len(row.request.prompt_ids) + row.max_tokens for row in rows)
        longest = max(longest, max(len(cached) for cached in self._cached)) + 1
        self._cache.reserve(len(self._session), longest)
        return np.asarray(slots), np.asarray(starts)

    def _forward(self, ids_T: np.ndarray, keep_K: np.ndarray) -> torch.Tensor:
        ids = torch.as_tensor(ids_T, dtype=torch.long, device=self.device)
        keep = torch.as_tensor(keep_K, dtype=torch.long, device=self.device)
        return forward(self.model, ids, self._cache, keep).float()

    def _prefill(self, rows: Sequence[DecodingRow], slot_B: np.ndarray, start_B: np.ndarray) -> torch.Tensor:
        """Read the new part of every prompt and its draft, in chunks of similar length; returns logits row by row."""
        unread = [
            np.concatenate([row.request.prompt_ids[start:], np.asarray(row.draft, np.int32)])
            for row, start in zip(rows, start_B.tolist(), strict=True)
        ]
        new_B = np.asarray([len(tokens) for tokens in unread])
        # Stable, so that equal lengths keep the order of the requests and sums do not depend on the sort.
        order = np.argsort(new_B, kind="stable")
        logits: list[torch.Tensor] = [torch.empty(0)] * len(rows)
        begin = 0
        while begin < len(order):  # as many prompts as fit when padded to the longest
            end = begin + 1
            while end < len(order) and (end + 1 - begin) * new_B[order[end]] <= PREFILL_TOKENS:
                end += 1
            chunk = np.sort(order[begin:end])
            chunk = chunk[np.argsort(slot_B[chunk], kind="stable")]
            self._cache.plan(slot_B[chunk], start_B[chunk], new_B[chunk])
            counts = [1 + len(rows[i].draft) for i in chunk]
            ends = np.cumsum(new_B[chunk])
            keep_K = np.concatenate([np.arange(last - count, last) for last, count in zip(ends, counts, strict=True)])
            out_KV = self._forward(np.concatenate([unread[i] for i in chunk]), keep_K)
            for i, row_logits in zip(chunk, out_KV.split(counts), strict=True):
                logits[i] = row_logits
            begin = end
        return torch.cat(logits)

    def _advance(self) -> torch.Tensor:
        """Read the last token of every response under way and its draft; returns logits as :meth:`_take` takes them."""
        rows = self._rows
        if self._draft_tokens and not self._recorded:
            for row in rows:
                self._draft(row)
        slot_B = np.asarray([self._slot[row.request.session] for row in rows])
        position_B = np.asarray([row.read for row in rows])
        unread = [[row.ids[row.count - 1], *row.draft] for row in rows]  # lists: an array for each row takes longer
        new_B = np.asarray([len(tokens) for tokens in unread])
        first = len(self._cached) if self._recorded else int(slot_B.max()) + 1
        if 3 * len(slot_B) < first and not self._recorded:  # few of many: reading idle slots would cost more
            self._cache.plan(slot_B, position_B, new_B)
            return self._forward(joined(unread), np.arange(new_B.sum()))
        # Cheaper than gathering the slots of the rows: advance all first slots in place. An idle slot reads token 0
        # after its cached tokens; that place is overwritten when its session goes on.
        unread_S = [[0]] * first
        for slot, tokens in zip(slot_B.tolist(), unread, strict=True):
            unread_S[slot] = tokens
        position_S = np.asarray([len(cached) for cached in self._cached[:first]])
        position_S[slot_B] = position_B
        if self._recorded:
            try:
                logits_SV = self._steps(self._cache, joined(unread_S), position_S)
                return logits_SV[torch.as_tensor(slot_B, device=self.device)].float()
            except RuntimeError:  # the model's code synchronises with the GPU, or memory is short: nothing was recorded
                self._recorded = False
                self._steps = RecordedSteps(self.model)
        new_S = np.asarray([len(tokens) for tokens in unread_S])
        self._cache.plan(np.arange(first), position_S, new_S)
        end_B = np.cumsum(new_S)[slot_B]
        keep_K = np.concatenate([np.arange(end - count, end) for end, count in zip(end_B, new_B, strict=True)])
        return self._forward(joined(unread_S), keep_K)


def joined(tokens: Iterable[Iterable[int]]) -> np.ndarray:
    """The tokens of several rows after one another."""
    return np.fromiter(itertools.chain.from_iterable(tokens), np.int64)


def sample(logits_BV: torch.Tensor, uniform_B: np.ndarray, temperature_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sample one token per row by inverting the cumulative distribution at ``uniform_B``.

    A row with temperature 0 takes its most probable token and reports the log-probability at temperature 1. Sums are
    float64 on a CPU, which adds in sequence, and float32 on a GPU, which adds in a tree and is slow in float64.

    Returns ids and log-probabilities of the tempered distribution.
    """
    greedy_B = torch.as_tensor(temperature_B == 0, device=logits_BV.device)
    scale_B = np.where(temperature_B == 0, 1.0, temperature_B)
    if (scale_B != 1).any():
        logits_BV = logits_BV / torch.as_tensor(scale_B, dtype=logits_BV.dtype, device=logits_BV.device)[:, None]
    logprob_BV = torch.log_softmax(logits_BV, -1)
    probability_BV = (logprob_BV if logits_BV.is_cuda else logprob_BV.double()).exp()
    cumulative_BV = probability_BV.cumsum(-1)
    uniform = torch.as_tensor(uniform_B, dtype=cumulative_BV.dtype, device=logits_BV.device)
    uniform.clamp_(max=1 - 4 * torch.finfo(uniform.dtype).eps)  # rounded to 1 it would draw a token of probability 0
    target_B1 = uniform[:, None] * cumulative_BV[:, -1:]
    token_B = torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0].clamp_(max=logits_BV.shape[-1] - 1)
    # All rows are computed alike and greedy ones replaced: one kernel for the batch.
    token_B = torch.where(greedy_B, logprob_BV.argmax(-1), token_B)
    logprob_B = logprob_BV.gather(-1, token_B[:, None])[:, 0]
    return token_B.cpu().numpy(), logprob_B.cpu().numpy()
