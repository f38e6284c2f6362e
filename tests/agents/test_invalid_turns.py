"""Why a turn has no valid action: set by the rollout, counted, and kept in files."""

import numpy as np

import gagpo.envs.testing  # noqa: F401 (registers the corridor)
from gagpo.agents.agent import LanguageAgent
from gagpo.agents.context import Context
from gagpo.agents.engines.base import Response, Sampling
from gagpo.agents.prompts import find_prompt
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.base.errors import InvalidArgument
from gagpo.data import MOST_REFUSAL, Episode, Turn, episode_from_record, episode_record, read_episodes, write_episodes
from gagpo.envs.pool import WorkerPool
from gagpo.eval.episode_files import read_episode_file
from gagpo.eval.results import EvalResult, EvaluatedTaskSet
from gagpo.eval.summary import result_lines
from gagpo.training.metrics import rollout_metrics
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


class ScriptedEngine:
    """Answers the n-th request of a session with the n-th text; one that ends in … has no stop token."""

    dtype, max_length, shares_weights = "float32", 512, True

    def __init__(self, tokenizer, *texts):
        self.tokenizer, self.texts, self.asked = tokenizer, texts, 0

    def generate(self, requests, sampling):
        text = self.texts[self.asked]
        self.asked += 1
        ids = self.tokenizer.encode(text.removesuffix("…"), add_special_tokens=False)
        stopped = not text.endswith("…")
        ids = np.asarray([*ids, self.tokenizer.eos_token_id][: None if stopped else -1], np.int32)
        return [Response(ids, np.zeros(len(ids), np.float32), stopped) for _ in requests]

    def release(self, session):
        pass


def play(tiny, prompt, *texts):
    tokenizer = tiny[1]
    context = Context(tokenizer, find_prompt(prompt))
    agent = LanguageAgent(ScriptedEngine(tokenizer, *texts), context, Sampling(max_tokens=8))
    with WorkerPool(CORRIDOR, {"max_turns": len(texts)}, workers=0) as pool:
        (episode,), _ = rollout(agent, pool, group_jobs(["door-03"], 1, seed=0))
    return episode


def test_every_kind_of_invalid_turn_is_counted(tiny):
    texts = ["left", "right…", "go away", "go aw…", "a\nb", "a\nb…"]
    episode = play(tiny, "plain", *texts)
    assert [turn.invalid for turn in episode.turns] == ["", "", "refused", "cut off", "not parsed", "cut off"]
    assert [turn.cut for turn in episode.turns] == [text.endswith("…") for text in texts]
    metrics = rollout_metrics([episode])
    shares = {name: round(6 * value) for name, value in metrics.items() if name.startswith(("invalid_", "truncated"))}
    assert shares == {
        "invalid_rate": 4,
        "invalid_unparsed": 1,
        "invalid_refused": 1,
        "invalid_cut": 2,
        "truncated_responses": 3,  # the valid one too
    }


def test_an_action_at_the_limit_that_ends_by_itself_is_not_cut(tiny):
    length = len(tiny[1].encode("go away", add_special_tokens=False)) + 1
    agent = LanguageAgent(
        ScriptedEngine(tiny[1], "go away"), Context(tiny[1], find_prompt("plain")), Sampling(max_tokens=length)
    )
    with WorkerPool(CORRIDOR, {"max_turns": 1}, workers=0) as pool:
        (episode,), _ = rollout(agent, pool, group_jobs(["door-03"], 1, seed=0))
    assert len(episode.turns[0].response_ids) == length and episode.turns[0].invalid == "refused"


def test_files_hold_the_reason_and_the_refusal(tiny, tmp_path):
    episode = play(tiny, "plain", "left", "go away", "a\nb", "fly")
    write_episodes(tmp_path / "e.jsonl", [episode])
    (record,) = read_episodes(tmp_path / "e.jsonl")
    rows = [(turn["valid"], turn.get("invalid"), turn.get("refusal")) for turn in record["turns"]]
    observed = [turn.observation for turn in episode.turns] + [episode.end_observation]
    assert rows == [
        (True, None, None),
        (False, "refused", observed[2]),
        (False, "not parsed", None),
        (False, "refused", observed[4]),  # of the last turn: what the episode ended with
    ]
    assert episode_record(episode_from_record(record)) == record
    (output,), _ = read_episode_file(tmp_path / "e.jsonl")
    assert [turn.invalid for turn in output.turns] == [None, "refused", "not parsed", "refused"]
    assert output.turns[1].refusal == observed[2]


def test_a_long_refusal_is_cut():
    turns = [Turn("o", "fly", "fly", invalid="refused"), Turn("no" * MOST_REFUSAL, "x", "x", invalid="refused")]
    first, last = episode_record(Episode("t", turns=turns))["turns"]
    assert first["refusal"] == "no" * (MOST_REFUSAL // 2) and "refusal" not in last  # nothing is known of the end


def test_a_record_that_contradicts_itself_is_refused(tiny):
    record = episode_record(play(tiny, "plain", "left", "go away"))
    record["turns"][1].pop("invalid")
    with rejects(InvalidArgument, "'invalid'", key="valid", where="turn 1"):
        episode_from_record(record)
    record["turns"][0]["invalid"] = "<b>"
    with rejects(InvalidArgument, "got '<b>'", key="invalid", where="turn 0"):
        episode_from_record(record)


def test_an_evaluation_reports_the_rate_of_cut_responses(tiny):
    episode = play(tiny, "plain", "left", "right…", "go away", "go aw…")
    result = EvalResult.from_episodes(
        [episode], EvaluatedTaskSet("w", "test", "h", 1, conditions={"max_tokens": 8}), "m", 1.0
    )
    assert result.cut_rate == 0.5 and result.summary()["cut_rate"] == 0.5
    assert EvalResult.from_json(result.to_json()) == result
    assert "50.0 % of the answers cut at 8 tokens" in " ".join(" ".join(result_lines(result)).split())
    eval_result = EvalResult.from_episodes(
        [play(tiny, "plain", "left")], EvaluatedTaskSet("w", "test", "h", 1), "m", 1.0
    )
    assert "cut at" not in " ".join(result_lines(eval_result))
