"""Where sessions go: tries of a group meet, no server is left idle for it, and less is read for it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.agents.engines.base import Request, Sampling
from gagpo.agents.engines.remote.engine import VLLMServerEngine
from gagpo.agents.engines.remote.prefixes import BLOCK, LEAD, PrefixTable
from tests.agents.engines.remote.fake_server import serving


class StandIn:
    """A server's prefix cache: blocks by all that stands before them. read: tokens that it did not have."""

    def __init__(self):
        self.blocks, self.read = set(), 0

    def take(self, ids):
        whole = [tuple(ids[: end + BLOCK]) for end in range(0, len(ids) - BLOCK + 1, BLOCK)]
        new = [block for block in whole if block not in self.blocks]
        self.read += BLOCK * len(new) + len(ids) % BLOCK
        self.blocks.update(new)


def fewest(ids, sessions):
    """What was done before: the server with the fewest sessions, the first of them."""
    return min(sessions, key=lambda number: (sessions[number], number))


def tokens_read(choose, servers, groups=16, tries=8, instructions=192, task=400):
    """Tokens that servers read of the first prompts of an iteration, and how many sessions each then has."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 50_000, instructions)
    caches, sessions = [StandIn() for _ in range(servers)], dict.fromkeys(range(servers), 0)
    for _ in range(groups):
        ids = np.concatenate([shared, rng.integers(0, 50_000, task)])
        for _ in range(tries):
            number = choose(ids, sessions)
            caches[number].take(ids.tolist())
            sessions[number] += 1
    return sum(cache.read for cache in caches), sessions


@pytest.mark.parametrize("servers", [2, 4, 8])
def test_tries_of_a_group_are_read_once(servers):
    """16 groups of 8 tries: strewn over all servers, each of them reads every task; together, one does."""
    before, even = tokens_read(fewest, servers)
    after, sessions = tokens_read(PrefixTable().choose, servers)
    print(f"{servers} servers: {before:,} tokens read by fewest sessions, {after:,} by prefix")
    assert set(even.values()) == {128 // servers} and max(sessions.values()) - min(sessions.values()) <= LEAD + 8
    once = servers * 192 + 16 * 400
    assert after == once and before == servers * (192 + 16 * 400)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 80)), max_size=120), st.integers(1, 5))
def test_no_server_is_far_ahead_of_another_whatever_comes(sessions, servers):
    table, count = PrefixTable(most=50), dict.fromkeys(range(servers), 0)
    for kind, length in sessions:
        least = min(count.values())
        number = table.choose(np.full(length, kind), count)
        assert count[number] <= least + LEAD + least // 4
        count[number] += 1
        assert len(table._readers) <= 50
    assert max(count.values()) - min(count.values()) <= LEAD + 1 + min(count.values()) // 4


def test_what_is_known_ends_with_weights_and_servers():
    table, ids = PrefixTable(), np.arange(100)
    assert table.choose(ids, {0: 3, 1: 2}) == 1 and table.held(ids) == {1: 96}
    assert table.held(np.r_[ids[:40], 7, ids[41:]]) == {1: 32}  # up to the block that differs
    assert table.choose(ids, {0: 0, 1: 5}) == 1 and table.choose(ids, {0: 0, 1: 5}, refused=[1]) == 0
    table.forget(1)
    assert table.held(ids) == {0: 96}
    table.clear()
    assert table.held(ids) == {}


def test_a_group_meets_at_one_server(tiny):
    with serving(*tiny, count=2) as servers:
        engine = VLLMServerEngine(*tiny, urls=[fake.url for fake in servers], deadline=20, silence=5)
        for fake in servers:
            fake.asked.clear()
        rng = np.random.default_rng(0)
        prompts = [rng.integers(5, 20, 2 * BLOCK).astype(np.int32) for _ in range(4)]
        requests = [Request(3 * group + n, ids, n) for group, ids in enumerate(prompts) for n in range(3)]
        engine.generate(requests, Sampling(1.0, max_tokens=2))
        seen = [{tuple(body["token_ids"]) for body in fake.asked} for fake in servers]
        assert not seen[0] & seen[1] and [len(fake.asked) for fake in servers] == [6, 6]
        engine.close()
