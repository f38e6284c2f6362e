"""An engine on transformers: one KV cache slot per session, prompts read once, responses decoded together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gagpo.agents.engines.attention import SlotCache, forward
from gagpo.agents.engines.base import Request, Response, Sampling, longest_row, stop_tokens
from gagpo.envs.errors import InvalidArgument


class TransformersEngine:
    """Samples from ``model`` itself, so weights that a trainer changes in place are used after :meth:`refresh`.

    A session whose prompt begins with the tokens already cached is only read from where it differs. Live sessions
    always fill the first slots of the cache, so a call about most of them reads the cache in place; a call about few
    gathers their slots instead.
    """

    def __init__(
        self, model: torch.nn.Module, tokenizer: Any, max_length: int | None = None, prefill_tokens: int = 8192
    ):
        config: Any = model.config
        self.model = model
        self.tokenizer = tokenizer
        self.device = next(model.parameters()).device
        limit = getattr(config, "max_position_embeddings", 4096)
        self.max_length = min(max_length or limit, limit)
        self.prefill_tokens = prefill_tokens
        self.stops = np.asarray(stop_tokens(tokenizer, model))
        self._cache = self._new_cache()
        self._slot: dict[int, int] = {}
        self._session: list[int] = []  # by slot
        self._cached: list[np.ndarray] = []  # by slot: the tokens whose keys and values it holds

    def _new_cache(self) -> SlotCache:
        config: Any = self.model.config
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dtype = next(self.model.parameters()).dtype
        return SlotCache(config.num_hidden_layers, heads, head_size, dtype, self.device)

    def refresh(self) -> None:
        self._cache = self._new_cache()
        self._slot.clear()
        self._session.clear()
        self._cached.clear()

    @torch.inference_mode()
    def release(self, session: int) -> None:
        slot = self._slot.pop(session, None)
        if slot is None:
            return
        last_session, last_cached = self._session.pop(), self._cached.pop()
        if last_session != session:  # the last slot fills the hole
            self._cache.move(len(self._session), slot, len(last_cached))
            self._slot[last_session] = slot
            self._session[slot], self._cached[slot] = last_session, last_cached

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Response]:
        if not requests:
            return []
        longest = longest_row(requests, sampling, self.max_length)
        was_training = self.model.training
        self.model.eval()
        slot_B, start_B = self._place(requests, longest)
        try:
            logits_BV = self._prefill(requests, slot_B, start_B)
            return self._decode(requests, slot_B, logits_BV, sampling)
        except BaseException:
            for request in requests:  # an interrupted call leaves caches half written
                self.release(request.session)
            raise
        finally:
            self.model.train(was_training)

    def _place(self, requests: Sequence[Request], capacity: int) -> tuple[np.ndarray, np.ndarray]:
        """A slot for every session, and how many of its prompt's tokens the slot already holds."""
        slots, starts = [], []
        for request in requests:
            if request.session not in self._slot:
                self._slot[request.session] = len(self._session)
                self._session.append(request.session)
                self._cached.append(np.zeros(0, np.int32))
            slot, prompt = self._slot[request.session], request.prompt_ids
            same = min(len(self._cached[slot]), len(prompt) - 1)  # the last token is always read: its logits are needed
            differs = np.flatnonzero(self._cached[slot][:same] != prompt[:same])
            starts.append(int(differs[0]) if len(differs) else same)
            slots.append(slot)
        if len(set(slots)) != len(slots):
            raise InvalidArgument("two requests of one call belong to the same session")
        longest = max(capacity, max(len(cached) for cached in self._cached)) + 1
        self._cache.reserve(len(self._session), longest)
        return np.asarray(slots), np.asarray(starts)

    def _forward(self, ids_T: np.ndarray, keep_K: np.ndarray) -> torch.Tensor:
        ids = torch.as_tensor(ids_T, dtype=torch.long, device=self.device)
        keep = torch.as_tensor(keep_K, dtype=torch.long, device=self.device)
        return forward(self.model, ids, self._cache.position_T, self._cache, keep).float()

    def _prefill(self, requests: Sequence[Request], slot_B: np.ndarray, start_B: np.ndarray) -> torch.Tensor:
        """Read what is new of every prompt, in chunks of like length; logits ``(B, V)`` after the last tokens."""
        new_B = np.asarray([len(request.prompt_ids) for request in requests]) - start_B
        order = np.argsort(new_B, kind="stable")
        logits: list[torch.Tensor] = [torch.empty(0)] * len(requests)
        begin = 0
        while begin < len(order):
            end = begin + 1
            while end < len(order) and (end + 1 - begin) * new_B[order[end]] <= self.prefill_tokens:
                end += 1
            chunk = np.sort(order[begin:end])
            chunk = chunk[np.argsort(slot_B[chunk], kind="stable")]
            self._cache.plan(slot_B[chunk], start_B[chunk], new_B[chunk])
            ids_T = np.concatenate([requests[i].prompt_ids[start_B[i] :] for i in chunk])
            out = self._forward(ids_T, np.cumsum(new_B[chunk]) - 1)
            for i, row in zip(chunk, out, strict=True):
                logits[i] = row
            begin = end
        return torch.stack(logits)

    def _decode(
        self, requests: Sequence[Request], slot_B: np.ndarray, logits_BV: torch.Tensor, sampling: Sampling
    ) -> list[Response]:
        rows, most = len(requests), sampling.max_tokens
        uniform_BK = np.stack([np.random.Generator(np.random.Philox(r.seed)).random(most) for r in requests])
        ids_BK = np.zeros((rows, most), np.int32)
        logprob_BK = np.zeros((rows, most), np.float32)
        count_B = np.zeros(rows, np.int64)
        stopped_B = np.zeros(rows, bool)
        prompt_B = np.asarray([len(request.prompt_ids) for request in requests])
        own = [request.temperature for request in requests]
        temperature_B = np.asarray([sampling.temperature if t is None else t for t in own], np.float64)
        live = np.arange(rows)
        for step in range(most):
            token_B, logprob_B = sample(logits_BV, uniform_BK[live, step], temperature_B[live], sampling.top_p)
            ids_BK[live, step], logprob_BK[live, step] = token_B, logprob_B
            count_B[live] += 1
            stopped_B[live] = np.isin(token_B, self.stops)
            for i in live[stopped_B[live]]:  # the last sampled token is never read, so it is not cached
                self._cached[slot_B[i]] = np.concatenate([requests[i].prompt_ids, ids_BK[i, :step]])
            live = live[~stopped_B[live]]
            if not len(live) or step + 1 == most:
                break
            logits_BV = self._advance(slot_B[live], prompt_B[live] + step, ids_BK[live, step])
        for i in live[~stopped_B[live]]:
            self._cached[slot_B[i]] = np.concatenate([requests[i].prompt_ids, ids_BK[i, : most - 1]])
        return [
            Response(ids_BK[i, : count_B[i]].copy(), logprob_BK[i, : count_B[i]].copy(), bool(stopped_B[i]))
            for i in range(rows)
        ]

    def _advance(self, slot_B: np.ndarray, position_B: np.ndarray, token_B: np.ndarray) -> torch.Tensor:
        """Read one token per slot; logits ``(B, V)`` after it."""
        first = int(slot_B.max()) + 1
        if 3 * len(slot_B) < first:
            self._cache.plan(slot_B, position_B, np.ones(len(slot_B), np.int64))
            return self._forward(token_B, np.arange(len(slot_B)))
        # Cheaper than gathering: all first slots go along, the idle ones with a token that lands beyond what they hold.
        token_S = np.zeros(first, np.int64)
        position_S = np.asarray([len(cached) for cached in self._cached[:first]])
        token_S[slot_B], position_S[slot_B] = token_B, position_B
        self._cache.plan(np.arange(first), position_S, np.ones(first, np.int64))
        return self._forward(token_S, slot_B)


def sample(
    logits_BV: torch.Tensor, uniform_B: np.ndarray, temperature_B: np.ndarray, top_p: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Draw one token a row by inverting the cumulative distribution at ``uniform_B``; gives ids and log-probabilities.

    A row of temperature 0 takes its most probable token and reports the log-probability at temperature 1. The reported
    log-probabilities are those of the whole tempered distribution, whatever ``top_p`` left of it.
    """
    greedy_B = torch.as_tensor(temperature_B == 0, device=logits_BV.device)
    scale_B = np.where(temperature_B == 0, 1.0, temperature_B)
    if (scale_B != 1).any():
        logits_BV = logits_BV / torch.as_tensor(scale_B, dtype=logits_BV.dtype, device=logits_BV.device)[:, None]
    logprob_BV = torch.log_softmax(logits_BV, -1)
    probability_BV = logprob_BV.double().exp()
    if top_p < 1:
        sorted_BV, order_BV = probability_BV.sort(-1, descending=True)
        outside_BV = sorted_BV.cumsum(-1) - sorted_BV >= top_p
        probability_BV = probability_BV.scatter(-1, order_BV, sorted_BV.masked_fill(outside_BV, 0.0))
    cumulative_BV = probability_BV.cumsum(-1)
    target_B1 = torch.as_tensor(uniform_B, device=logits_BV.device)[:, None] * cumulative_BV[:, -1:]
    token_B = torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0].clamp_(max=logits_BV.shape[-1] - 1)
    token_B = torch.where(greedy_B, logprob_BV.argmax(-1), token_B)
    logprob_B = logprob_BV.gather(-1, token_B[:, None])[:, 0]
    return token_B.cpu().numpy(), logprob_B.cpu().numpy()
