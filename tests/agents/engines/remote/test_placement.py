"""Servers and ranks in any ratio: every rank has a server, and one rank updates each."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagpo.agents.engines.remote.placement import is_local, share_of, share_of_started
from gagpo.base.rank import Rank


@given(st.integers(1, 20), st.integers(1, 20))
def test_every_server_is_updated_by_one_rank_and_every_rank_has_a_home(servers, ranks):
    shares = [share_of(servers, Rank(rank, ranks)) for rank in range(ranks)]
    assert sorted(number for share in shares for number in share.updated) == list(range(servers))
    homes = [len(share.home) for share in shares]
    assert min(homes) >= 1 and max(homes) - min(homes) <= 1
    users = [sum(number in share.home for share in shares) for number in range(servers)]
    assert max(users) - min(users) <= 1
    for share in shares:
        assert sorted(share.home + share.reserve) == list(range(servers)) and set(share.updated) <= set(share.home)


def test_rank_r_uses_server_r_mod_n_where_servers_are_fewer():
    shares = [share_of(2, Rank(rank, 5)) for rank in range(5)]
    assert [share.home for share in shares] == [(0,), (1,), (0,), (1,), (0,)]
    assert [share.updated for share in shares] == [(0,), (1,), (), (), ()]


def test_started_servers_are_a_home_to_their_rank_and_a_reserve_to_its_machine():
    shares = [share_of_started([2, 1], Rank(4 + local, 6, local, 2)) for local in range(2)]
    assert [(share.home, share.updated, share.reserve) for share in shares] == [
        ((0, 1), (0, 1), (2,)),
        ((2,), (2,), (0, 1)),
    ]


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", socket.has_ipv6),
        ("http://192.0.2.7:8000", False),  # reserved for documentation
        ("http://no-such-host.invalid:8000", False),
    ],
)
def test_servers_on_this_machine_are_those_whose_address_can_be_bound(url, local):
    assert is_local(url) == local
