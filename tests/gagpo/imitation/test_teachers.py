"""Teachers of other tokens, behind a server, and of several worlds, held against what they should say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.agents.context import Context
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.prompts import STYLES
from gagpo.imitation import served_teacher
from gagpo.imitation.alignment import chunks_of, spread, token_ends
from gagpo.imitation.served_teacher import ServedTeacher, TeacherFailed
from gagpo.learning.batch import Row, build_rows
from gagpo.objectives.imitation import Distillation
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import SettingsError
from gagpo.settings import load as load_run
from gagpo.sft.small_model import ModelShape, build, save_folder, train_tokenizer
from gagpo.training.trainer import Trainer
from tests.gagpo.imitation.teacher_server import serving_teacher

ENGLISH = ["You stand at 3. Go to door 11. left right left right"] * 40
OTHER = ["the quick brown fox leftright standing doors Zoë 漢字 é"] * 40
TOKENIZERS = [train_tokenizer(ENGLISH, 340), train_tokenizer(OTHER, 320), train_tokenizer(ENGLISH, 400, "digits")]
TEXTS = st.text(alphabet=st.sampled_from("leftrigh dosan31 .Zoë漢字é<>\n"), max_size=30)
ALONE = {"preset": "dr_grpo", "credit_weight": 0.0}
QUICK = {"splits": [], "before": False}


def encoded(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


@settings(deadline=None, max_examples=200)
@given(TEXTS, st.sampled_from(TOKENIZERS), st.sampled_from(TOKENIZERS))
def test_chunks_are_the_finest_parts_that_both_tokenizers_spell(text, one, other):
    """Against the definition: a place is common where the tokens before it decode to the same text in both."""
    columns = [encoded(tokenizer, text) for tokenizer in (one, other)]
    ends = [token_ends(tokenizer, ids, text) for tokenizer, ids in zip((one, other), columns, strict=True)]
    for tokenizer, ids, own in zip((one, other), columns, ends, strict=True):
        assert own == sorted(own) and (not ids or own[-1] == len(text))
        for number, end in enumerate(own):
            before = tokenizer.decode(ids[: number + 1])
            assert before == text[:end] or not text.startswith(before)
    if not text:
        return
    chunks = chunks_of(*ends)
    pieces = []
    for tokenizer, ids, chunk_K in zip((one, other), columns, chunks, strict=True):
        assert sorted(set(chunk_K.tolist())) == list(range(chunk_K[-1] + 1)), "each chunk has tokens of both"
        parts = [[token for token, c in zip(ids, chunk_K, strict=True) if c == number] for number in set(chunk_K)]
        pieces.append([tokenizer.decode(part) for part in parts])
    assert pieces[0] == pieces[1] and "".join(pieces[0]) == text
    prefixes = [
        {tokenizer.decode(ids[:n]) for n in range(1, len(ids) + 1)}
        for tokenizer, ids in zip((one, other), columns, strict=True)
    ]
    whole = {prefix for prefix in prefixes[0] & prefixes[1] if text.startswith(prefix)}
    assert len(pieces[0]) == len(whole)


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet="leftrigh dosan31 .", min_size=1, max_size=30), st.sampled_from(TOKENIZERS))
def test_in_the_same_tokens_every_token_is_a_chunk(text, tokenizer):
    ends = token_ends(tokenizer, encoded(tokenizer, text), text)
    chunk_K, _ = chunks_of(ends, ends)
    assert chunk_K.tolist() == list(range(len(ends)))
    values = np.random.default_rng(len(text)).normal(size=len(ends))
    assert spread(values, chunk_K).tolist() == values.tolist()


def test_parts_add_up_to_the_chunk():
    chunk_K, chunk_T = chunks_of([1, 2, 5, 6], [2, 3, 5, 6])
    assert (chunk_K.tolist(), chunk_T.tolist()) == ([0, 0, 1, 2], [0, 1, 1, 2])
    parts = spread(np.array([4.0, 3.0, -1.0]), chunk_K)
    assert parts.tolist() == [2.0, 2.0, 3.0, -1.0]


@pytest.fixture
def collected(corridor, tmp_path):
    """A trainer with a teacher, and the episodes, rows and response tokens of one collection."""

    def play(teacher, **more):
        algorithm = {**ALONE, "distillation": {"teacher": str(teacher), **more}}
        config = corridor(algorithm=algorithm, context={"style": "plain", "history": 0}, evaluation=QUICK)
        trainer = Trainer(
            RunFolder.create(tmp_path / f"run-{len(list(tmp_path.iterdir()))}", load_run(config)), quiet=True
        )
        with trainer.placement.open_pool(trainer.settings) as pool:
            episodes = trainer.collector.collect(trainer.sampler.agent(), pool, 0).episodes
        rows = build_rows(episodes)
        return trainer.learner.imitation.teacher, episodes, rows, sum(len(row.token_K) for row in rows)

    return play


@pytest.fixture
def stranger(tmp_path):
    """A model folder whose tokenizer is another."""
    small = ModelShape(layers=2, width=32, heads=2, feed_forward=48, vocabulary=320, context=512)
    model, tokenizer = build(small, OTHER, seed=3)
    save_folder(model, tokenizer, tmp_path / "stranger")
    return tmp_path / "stranger"


@pytest.mark.parametrize("form", ["log_ratio", "bounded"])
@pytest.mark.parametrize("hint", ["none", "expert"])
def test_by_text_in_the_same_tokens_is_the_exact_form(collected, warm_model, form, hint):
    teacher, episodes, rows, tokens = collected(warm_model, form=form, hint=hint)
    exact_K, judged_K = teacher.advantage(rows, episodes, tokens)
    teacher.own = teacher.manners
    text_K, also_K = teacher.advantage(rows, episodes, tokens)
    context = teacher.manners[""].context
    canonical = [  # and no character is spelled by several tokens, as that is one chunk
        turn.response.isascii() and np.array_equal(context.response(turn.response, not turn.cut), turn.response_ids)
        for one in episodes
        for turn in one.turns
    ]
    same_K = np.repeat(canonical, [len(turn.response_ids) for one in episodes for turn in one.turns])
    assert same_K.sum() > 30 and (judged_K == also_K).all()
    np.testing.assert_allclose(text_K[same_K], exact_K[same_K], atol=1e-5)  # float32 sums in batches of other shapes


def test_a_teacher_of_other_tokens_says_what_its_model_says_of_the_text(collected, stranger):
    """Of each response the advantages add up to the log-ratio of the two probabilities of its text."""
    with pytest.warns(UserWarning, match="reads other tokens than .*it judges by text"):
        teacher, episodes, rows, tokens = collected(stranger)
    advantage_K, judged_K = teacher.advantage(rows, episodes, tokens)
    assert judged_K.all()
    model = load_model(str(stranger))
    model.set_attn_implementation("eager")
    context = Context(load_tokenizer(str(stranger)), STYLES["plain"], history=0)
    first = 0
    for episode in episodes[:6]:
        for number, turn in enumerate(episode.turns):
            prompt_ids = context.prompt(episode.turns[:number], turn.observation)
            response_ids = context.response(turn.response, not turn.cut)
            ids = torch.tensor(np.concatenate([prompt_ids, response_ids])[None].astype(np.int64))
            with torch.no_grad():
                logprobs = torch.log_softmax(model(ids).logits[0].double(), -1)
            told = logprobs[len(prompt_ids) - 1 : -1].gather(1, ids[0, len(prompt_ids) :, None]).sum().item()
            own = advantage_K[first : first + len(turn.response_ids)]
            if np.abs(own).max() < 5:  # none that was held within bounds
                assert own.sum() == pytest.approx(told - float(turn.logprobs.astype(np.float64).sum()), abs=1e-3)
            first += len(turn.response_ids)


def test_a_served_teacher_says_what_it_says_as_a_folder(collected, warm_model):
    exact, episodes, rows, tokens = collected(warm_model)
    expected, _ = exact.advantage(rows, episodes, tokens)
    with serving_teacher(load_model(warm_model), load_tokenizer(warm_model), warm_model) as fake:
        served, episodes, rows, tokens = collected(fake.url, concurrency=3)
        fake.fault, fake.times = "error", 2  # asked again
        found, judged_K = served.advantage(rows, episodes, tokens)
        assert judged_K.all() and served.own is None
        assert fake.told[0]["model"] == "teacher" and fake.told[0]["prompt_logprobs"] == 0
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_served_teacher_of_other_tokens_judges_by_text(collected, stranger):
    with serving_teacher(load_model(str(stranger)), load_tokenizer(str(stranger)), "no-such-folder") as fake:
        with pytest.warns(UserWarning, match="judges by text"):
            served, episodes, rows, tokens = collected(fake.url, tokenizer=str(stranger))
        found, _ = served.advantage(rows, episodes, tokens)
    with pytest.warns(UserWarning, match="judges by text"):
        local, *_ = collected(stranger)
    np.testing.assert_allclose(found, local.advantage(rows, episodes, tokens)[0], atol=1e-4)


ROW = Row(np.arange(8, dtype=np.int32), np.array([5, 6, 7]), np.zeros(3, int), np.arange(3), np.zeros(3, np.float32))
FAULTS = {
    "error": "500: .*it happens",
    "refuse": "400: .*not allowed",
    "hang": "did not answer within 0.5 s",
    "html": "answered with no JSON object",
    "none": "tells of 0 tokens, and 8 were asked about",
    "short": "tells of 7 tokens",
    "other token": "nothing is told of token 7",
    "nan": "nan is no log-probability",
    "positive": "3.0 is no log-probability",
    "empty": "answers otherwise than vLLM",
    "huge": "answered with more than",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_served_teacher_that_fails_is_named_in_time(monkeypatch, warm_model, fault):
    monkeypatch.setattr(served_teacher, "PAUSE", 0.01)
    with serving_teacher(load_model(warm_model), load_tokenizer(warm_model), warm_model) as fake:
        teacher = ServedTeacher(Distillation(teacher=f"{fake.url}/v1", deadline=20.0))
        assert np.isfinite(teacher.logprobs([ROW])[0]).all()
        teacher.chosen = Distillation(teacher=fake.url, deadline=0.5 if fault == "hang" else 20.0)
        fake.fault, fake.times = fault, 100
        before = len(fake.told)
        with pytest.raises(TeacherFailed, match=FAULTS[fault]):
            teacher.logprobs([ROW])
        again = {"error", "hang", "huge"}
        assert len(fake.told) - before == (served_teacher.TRIES if fault in again else 1)


def test_a_teacher_that_is_not_there_is_refused_before_anything_is_made(monkeypatch, corridor, tmp_path, warm_model):
    monkeypatch.setattr(served_teacher, "PAUSE", 0.01)
    for url, more, said in (
        ("http://127.0.0.1:9", {}, "the teacher does not answer: http://127.0.0.1:9/v1/models cannot be reached"),
        ("http://127.0.0.1:9", {"rollout": {"temperature": 0.7}}, "cannot be reached"),
    ):
        folder = RunFolder.new(
            tmp_path / "run", load_run(corridor(algorithm={**ALONE, "distillation": {"teacher": url}}, **more))
        )
        with pytest.raises(TeacherFailed, match=said):
            Trainer(folder, quiet=True)
        assert not folder.path.exists()
    with serving_teacher(load_model(warm_model), load_tokenizer(warm_model), warm_model) as fake:
        algorithm = {**ALONE, "distillation": {"teacher": fake.url}}
        config = corridor(algorithm=algorithm, rollout={"temperature": 0.7})
        with pytest.raises(SettingsError, match=r"rollout.temperature=0.7: set it to 1"):
            Trainer(RunFolder.new(tmp_path / "run", load_run(config)), quiet=True)
        fake.fault = "no model"
        with pytest.raises(TeacherFailed, match="lists no model"):
            Trainer(RunFolder.new(tmp_path / "run", load_run(corridor(algorithm=algorithm))), quiet=True)
