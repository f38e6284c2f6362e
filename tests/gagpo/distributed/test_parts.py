"""Parts that need no second process: dealing, packing, background jobs, states on disk."""

import random
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.base.background import Background, JobTimeout
from gagpo.collecting.packing import packed, unpacked
from gagpo.data import Episode, Row, Turn, episode_record
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.states import StateError, fill_optimizer, names_of, optimizer_tensors, read, write
from gagpo.learning.packing import Packing
from gagpo.learning.rank_parts import rank_batches, shard_rows
from gagpo.objectives.layout import Normaliser
from tests.rejections import rejects


def row(length, number):
    """One of a group of three, which begin alike where they are long enough."""
    item, ids = np.asarray([length]), np.full(length + 1, number // 3, np.int32)
    ids[7:] = 100 + number
    return Row(ids, item, np.asarray([number]), np.asarray([number]), np.zeros(1), group=number // 3)


LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 6), st.booleans())
@settings(max_examples=40, deadline=None)
def test_rows_are_dealt_out_by_the_tokens_that_are_read(lengths, count, trees):
    rows, packing = [row(length, number) for number, length in enumerate(lengths)], Packing(100, trees)
    segments = shard_rows(rows, packing, count)
    assert sorted(int(item.turn_K[0]) for segment in segments for item in segment) == list(range(len(rows)))
    loads = [packing.size(segment) if segment else 0 for segment in segments]
    largest = max(map(packing.size, packing.units(rows, count)))
    met_again = sum(min(7, length) for length in lengths) if trees else 0  # by the parts of a tree that was halved
    assert max(loads) - min(loads) <= largest + met_again


@given(LENGTHS, st.integers(2, 5), st.integers(1, 100), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_rank_makes_as_many_passes(lengths, count, tokens, trees):
    rows, packing = [row(length, number) for number, length in enumerate(lengths)], Packing(tokens, trees)
    batches = [rank_batches(rows, packing, Ranks(rank, count)) for rank in range(count)]
    assert len({len(batch) for batch in batches}) == 1
    read = [micro for batch in batches for micro in batch if not micro.padding]
    assert sorted(int(turn) for micro in read for turn in micro.turn_K) == list(range(len(rows)))
    full = sum(lengths)
    assert packing.size(rows) <= sum(micro.tokens for micro in read) <= full
    assert trees or sum(micro.tokens for micro in read) == full
    assert all(sorted(batch, key=lambda micro: micro.padding) == batch for batch in batches), "padding comes last"


TEXTS = ["", "go north", "\ud800", "\x00", 'a "quoted" word', "Ärger"]


def some_episodes(seed):
    """Conversations that go on, windows that begin anew, empty responses, odd texts."""
    rng = random.Random(seed)

    def ids(count):
        return np.asarray([rng.randrange(2**31) for _ in range(count)], np.int32)

    result = []
    for number in range(rng.randrange(4)):
        episode = Episode(rng.choice(TEXTS), group=number, seed=2**47, temperature=0.7, end_state=rng.choice(TEXTS))
        episode.info = {"score": rng.random(), "won": True, "count": 3, "note": rng.choice(TEXTS)}
        before = ids(0)
        for _ in range(rng.randrange(5)):
            response_ids = ids(rng.randrange(4))
            turn = Turn(
                rng.choice(TEXTS),
                rng.choice(TEXTS),
                rng.choice(TEXTS),
                rng.gauss(0, 1),
                invalid=rng.choice(["", "refused", "cut off"]),
                cut=rng.random() < 0.5,
                state=rng.choice([None, "s"]),
                prompt_ids=np.concatenate([before if rng.random() < 0.7 else ids(0), ids(rng.randrange(5))]),
                response_ids=response_ids,
                logprobs=np.asarray([-rng.random() for _ in response_ids], np.float32),
            )
            before = np.concatenate([turn.prompt_ids, turn.response_ids])
            episode.turns.append(turn)
        result.append(episode)
    return result


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_episodes_arrive_as_they_were(seed):
    played = some_episodes(seed)
    results, about = unpacked(packed(played, {"error": None}))
    assert about == {"error": None} and len(results) == len(played)
    for item, other in zip(played, results, strict=True):
        assert episode_record(item, tokens=True) == episode_record(other, tokens=True)
        assert (item.end_state, item.end_observation) == (other.end_state, other.end_observation)
        for turn, same in zip(item.turns, other.turns, strict=True):
            assert (turn.invalid, turn.cut, turn.trainable) == (same.invalid, same.cut, same.trainable)
            for name in ("prompt_ids", "response_ids", "logprobs"):
                assert getattr(turn, name).dtype == getattr(same, name).dtype
                assert np.array_equal(getattr(turn, name), getattr(same, name))


def test_a_long_conversation_travels_once():
    turns, prompt = [], np.zeros(0, np.int32)
    for _ in range(50):
        prompt = np.concatenate([prompt, np.arange(100, dtype=np.int32)])
        turns.append(Turn("", "", "", prompt_ids=prompt, response_ids=np.arange(10, dtype=np.int32)))
        prompt = np.concatenate([prompt, turns[-1].response_ids])
    assert len(packed([Episode("t", turns=turns)], {})) < 50 * 110 * 4 + 20_000


def test_alone_every_call_gives_back_what_it_got():
    ranks = Ranks()
    assert ranks.alone and ranks.first and ranks.channel() is ranks
    array, normaliser = np.arange(3.0), Normaliser(1, 2, 3)
    assert ranks.total(array) is array and ranks.total(normaliser) is normaliser and ranks.total(2.5) == 2.5
    assert ranks.gathered("x") == ["x"] and ranks.of_first(lambda: 3) == 3 and ranks.agree("it", 4) == 4
    assert ranks.device("cuda") == "cuda" and ranks.threads(3) == 3


def test_background_work_is_heard_of():
    def fail():
        raise OSError("no room")

    work = Background("writing", 0.2)
    work.start(fail)
    with pytest.raises(OSError, match="no room"):
        work.wait()
    work.check()
    go = threading.Event()
    work.start(go.wait)
    work.check()
    with rejects(JobTimeout, "0.2 s", where="writing"):
        work.wait()
    go.set()


def fitted():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_tensor_of_another_shape_or_none_is_named(tmp_path):
    """A critic's, for instance, whose folder was copied from another run."""
    write({"head": torch.zeros(3, 4)}, tmp_path, Ranks())
    for wrong, names in (("head", ("'head'", "(3, 4)", "(2, 4)")), ("tail", ("no tensor 'tail'",))):
        with rejects(StateError, *names):
            read({wrong: torch.zeros(2, 4)}, tmp_path, Ranks())
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-8])
    with rejects(StateError, "read", where=path):
        read({"head": torch.zeros(3, 4)}, tmp_path, Ranks())


def test_an_optimiser_is_filled_from_names(tmp_path):
    model, optimizer = fitted()
    optimizer.param_groups[0]["lr"] = 0.025
    write(optimizer_tensors(optimizer, names_of(model, None)), tmp_path / "states", Ranks())
    other = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
    fresh = torch.optim.AdamW(other.parameters(), lr=0.1)
    fill_optimizer(fresh, names_of(other, None), tmp_path / "states", Ranks())
    assert fresh.param_groups[0]["lr"] == 0.025
    for item, two in zip(model.parameters(), other.parameters(), strict=True):
        assert all(torch.equal(optimizer.state[item][key], fresh.state[two][key]) for key in optimizer.state[item])
    other = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    with rejects(StateError, "1.weight.exp_avg", "(1, 5)", "(2, 5)"):
        fill_optimizer(torch.optim.AdamW(other.parameters()), names_of(other, None), tmp_path / "states", Ranks())
    smaller = torch.nn.Linear(3, 5)
    with rejects(StateError, "no parameter", where="states"):
        fill_optimizer(torch.optim.AdamW(smaller.parameters()), names_of(smaller, None), tmp_path / "states", Ranks())
