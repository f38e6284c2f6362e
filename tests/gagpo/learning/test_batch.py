"""From episodes to rows and micro-batches: each response token is trained once, with its own numbers."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.credit import Credit
from gagpo.data import Episode, Turn, build_rows
from gagpo.learning.loss import OldLogprobs, with_columns
from gagpo.learning.packing import Packing, mini_batches
from gagpo.model.logprobs import token_logprobs


def turn(prompt, response, trainable=True):
    ids = np.asarray(response, np.int32)
    return Turn("", "", "", prompt_ids=np.asarray(prompt, np.int32), response_ids=ids, trainable=trainable,
                logprobs=-np.asarray(response, np.float32) / 10)  # fmt: skip


def conversation(*turns, group=0):
    """An append-only episode from (new prompt ids, response ids) pairs."""
    row, result = [], []
    for prompt, response in turns:
        row = [*row, *prompt]
        result.append(turn(row, response))
        row = [*row, *response]
    return Episode("t", group=group, turns=result)


def test_an_append_only_conversation_is_one_row():
    (row,) = build_rows([conversation(([1, 2], [3, 4]), ([5], [6]))])
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert row.position_K.tolist() == [2, 3, 5]
    assert row.turn_K.tolist() == [0, 0, 1] and row.token_K.tolist() == [0, 1, 2]
    np.testing.assert_allclose(row.logprob_K, [-0.3, -0.4, -0.6])


def test_a_windowed_history_is_a_row_per_turn():
    rows = build_rows([Episode("t", turns=[turn([1, 2], [3]), turn([1, 9], [4, 5])])])
    assert [row.ids.tolist() for row in rows] == [[1, 2, 3], [1, 9, 4, 5]]
    assert [row.turn_K.tolist() for row in rows] == [[0], [1, 1]]


def test_a_row_breaks_where_a_token_differs():
    episode = conversation(([1, 2], [3]), ([4], [5]), ([6], [7]))
    episode.turns[2].prompt_ids[1] = 99
    assert [row.ids.tolist() for row in build_rows([episode])] == [[1, 2, 3, 4, 5], [1, 99, 3, 4, 5, 6, 7]]


def test_groups_are_numbered_in_order_and_empty_episodes_leave_no_row():
    rows = build_rows([conversation(([1], [2]), group=7), Episode("t", group=9), conversation(([1], [3]), group=4)])
    assert [row.group for row in rows] == [1, 0]


token = st.integers(0, 300)
episodes_strategy = st.lists(
    st.lists(
        st.tuples(st.lists(token, min_size=1, max_size=6), st.lists(token, min_size=1, max_size=4)),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(episodes_strategy, st.integers(1, 60), st.integers(1, 5))
def test_every_token_is_trained_once_with_its_own_numbers(plans, budget, parts):
    episodes = [conversation(*plan, group=i // 2) for i, plan in enumerate(plans)]
    responses = np.concatenate([t.response_ids for e in episodes for t in e.turns])
    turns = np.concatenate([[n] * len(t.response_ids) for n, t in enumerate(t for e in episodes for t in e.turns)])
    observed = np.zeros(len(responses), int)
    for mini in mini_batches(build_rows(episodes), parts, np.random.default_rng(0)):
        for batch in Packing(budget).micro_batches(mini):
            token = batch.token_K.numpy()
            observed[token] += 1
            assert batch.target_U.numpy().tolist() == responses[token].tolist()
            assert batch.turn_K.numpy().tolist() == turns[token].tolist()
            np.testing.assert_allclose(batch.logprob_K.numpy(), -responses[token] / 10, rtol=1e-6)
            rows, longest = batch.packed.shape
            assert rows == 1 or rows * longest <= budget
    assert (observed == 1).all()


def test_a_micro_batch_moves_with_all_columns():
    """To the meta device, so that tensors left behind would show."""
    episodes = [conversation(([5, 6], [7, 8]), ([9], [10])), conversation(([5], [6, 7]))]
    for episode in episodes:
        episode.temperature = 0.7
    (batch,) = Packing(100, trees=True).micro_batches(build_rows(episodes))
    credit = Credit(np.arange(3.0), np.array([2, 1, 2]), "turn", np.ones(3), value_K=np.arange(5.0))
    batch = with_columns(batch, credit, OldLogprobs(np.zeros(5), np.ones(5)))
    moved = batch.to("meta")
    for segment in (moved, moved.layout):
        for field in fields(segment):
            value = getattr(segment, field.name)
            assert not isinstance(value, torch.Tensor) or value.device.type == "meta", field.name
            assert value is not None, field.name
    assert moved.packed.position_T.device.type == "meta"
    assert batch.to("cpu") is batch and moved.tokens == batch.tokens


def test_log_probabilities_do_not_depend_on_how_rows_are_cut(tiny):
    model, _ = tiny
    rng = np.random.default_rng(0)
    episodes = [
        conversation(*[(rng.integers(0, 300, rng.integers(1, 9)), rng.integers(0, 300, 3)) for _ in range(3)])
        for _ in range(5)
    ]
    rows = build_rows(episodes)
    columns = []
    for budget in (1, 60, 10_000):
        column = torch.zeros(45)
        for batch in Packing(budget).micro_batches(rows):
            with torch.no_grad():
                column[batch.token_K], _ = token_logprobs(model, batch)
        columns.append(column)
    torch.testing.assert_close(columns[0], columns[1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(columns[0], columns[2], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
def test_temperature_and_entropy(tiny, temperature):
    model, _ = tiny
    episode = conversation(([5, 6], [7, 8]))
    episode.temperature = temperature
    (batch,) = Packing(100).micro_batches(build_rows([episode]))
    logprob, entropy = token_logprobs(model, batch)
    with torch.no_grad():
        from gagpo.model.flat.attention import forward
        from gagpo.model.flat.packed import PackedRows

        layout = PackedRows([3])
        logits = forward(model, torch.tensor([5, 6, 7]), layout, torch.tensor([1, 2])) / temperature
    distribution = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(logprob, distribution.log_prob(torch.tensor([7, 8])), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, distribution.entropy(), atol=1e-5, rtol=1e-5)
