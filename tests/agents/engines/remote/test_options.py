"""Options of engines behind servers: what does not go together is said, and ranks share servers out."""

import pytest

from gagpo.agents.engines.remote.engine import VLLMServerEngine
from gagpo.agents.engines.remote.seat import Seat, share_of
from gagpo.base.errors import InvalidArgument


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"urls": ["no address"]}, "no http address"),
        ({"urls": ["http://a:1", "http://a:1"]}, "names a server twice"),
        ({"urls": ["http://a:1"], "replicas": 2}, "urls of servers that exist, or how many replicas"),
        ({"urls": ["http://a:1"], "silence": 0}, "silence must be positive seconds"),
        ({"urls": ["http://a:1"], "transfer": "pigeon"}, "one of file, nccl, ipc, got 'pigeon'"),
        ({"urls": ["http://a:1"], "transfer": "ipc", "dtype": "float32"}, "needs a model on a GPU|needs vLLM"),
        ({"placement": "beside"}, "placement is colocated or separate"),
        ({"placement": "colocated", "replicas": 2}, "1 when colocated"),
        ({"replicas": 2, "gpus": [1]}, "must name 2 GPUs for 2 replicas of 1, got 1"),
    ],
)
def test_wrong_options_are_named(tiny, options, message):
    with pytest.raises(InvalidArgument, match=message):
        VLLMServerEngine(*tiny, **options)


def test_every_rank_has_servers_of_its_own():
    urls = [f"http://host:{n}" for n in range(5)]
    shares = [share_of(urls, Seat(rank, 2)) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == urls and len(shares[1]) == 2
    with pytest.raises(InvalidArgument, match="5 servers for 6 trainer ranks"):
        share_of(urls, Seat(0, 6))
