"""Exports, read back by the packages they are for."""

import json

import numpy as np
import pytest

from gagpo.agents.episodes import Episode, Turn, write_episodes
from gagpo.envs.errors import InvalidArgument
from gagpo.eval.journal import Journal
from gagpo.interop.export import export

KEY = {"model": "openai:m", "environment": "gagpo/Math-v0", "split": "test", "panel": "abc", "kwargs": {}}


def played(task="a/b c", sample=0):
    turns = [Turn("see", "<think>hm</think>do <action>x</action>", "x", 0.0), Turn("seen", "y", "y", 1.0, state="s")]
    info = {"prompt_tokens": 9, "completion_tokens": 3, "cost": 0.5}
    return Episode(task, "kind", "test", 0, sample, 1, 0.4, turns, True, "terminated", 0, info=info)


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path / "j", KEY) as journal:
        for sample in (0, 1):
            journal.append(played(sample=sample))
    return journal.path


def test_plain_lines(journal, tmp_path):
    assert export(journal, "jsonl", tmp_path / "e.jsonl") == 2
    lines = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert [line["sample"] for line in lines] == [0, 1] and lines[0]["model"] == "openai:m"
    assert export(tmp_path / "e.jsonl", "jsonl", tmp_path / "again.jsonl") == 2


def test_atif(journal, tmp_path):
    export(journal, "atif", tmp_path / "atif")
    paths = sorted((tmp_path / "atif").rglob("trajectory.json"))
    assert [str(path.relative_to(tmp_path / "atif")) for path in paths] == [
        f"a-b-c__{sample}/agent/trajectory.json" for sample in (0, 1)
    ]
    told = json.loads(paths[0].read_text())
    assert told["schema_version"] == "ATIF-v1.8" and told["agent"]["model_name"] == "openai:m"
    user, first, second = told["steps"]
    assert (user["message"], first["reasoning_content"]) == ("see", "hm")
    assert first["observation"]["results"][0]["content"] == "seen" and "observation" not in second
    assert told["final_metrics"]["total_cost_usd"] == 0.5


@pytest.mark.interop
def test_atif_is_valid_by_its_owner(journal, tmp_path):
    trajectories = pytest.importorskip("harbor.models.trajectories")
    one = played()
    one.turns[0].prompt_ids, one.turns[0].response_ids = np.arange(3, dtype=np.int32), np.array([5, 6], np.int32)
    one.turns[0].logprobs = np.array([-0.5, -0.25], np.float32)
    write_path = tmp_path / "tokens.jsonl"
    write_episodes(write_path, [one, Episode("empty")], tokens=True)
    for source, name in ((journal, "one"), (write_path, "two")):
        export(source, "atif", tmp_path / name)
        for path in (tmp_path / name).rglob("trajectory.json"):
            trajectories.Trajectory.model_validate_json(path.read_text())
    told = json.loads((tmp_path / "two/a-b-c__0/agent/trajectory.json").read_text())
    assert told["steps"][1]["metrics"]["logprobs"] == [-0.5, -0.25]


@pytest.mark.interop
def test_inspect(journal, tmp_path):
    log = pytest.importorskip("inspect_ai.log")
    export(journal, "inspect", tmp_path / "logs")
    read = log.read_eval_log(str(tmp_path / "logs" / "episodes.json"))
    assert (read.status, read.eval.model, read.eval.metadata["split_hash"]) == ("success", "openai:m", "abc")
    assert [(s.id, s.epoch, s.scores["success"].value) for s in read.samples] == [("a/b c", 1, 1.0), ("a/b c", 2, 1.0)]
    assert read.samples[0].messages[1].text.endswith("<action>x</action>")


def test_datasets(journal, tmp_path):
    datasets = pytest.importorskip("datasets")
    export(journal, "hf", tmp_path / "hf")
    read = datasets.load_from_disk(str(tmp_path / "hf"))
    assert read["sample"] == [0, 1] and read[0]["messages"][2] == {"role": "user", "content": "seen"}


def test_what_cannot_be_exported(journal, tmp_path):
    with pytest.raises(InvalidArgument, match="choose one of jsonl"):
        export(journal, "csv", tmp_path / "x")
    with pytest.raises(InvalidArgument, match="exists"):
        export(journal, "jsonl", journal)
    (tmp_path / "bad").write_text('{"task": 1}\n')
    with pytest.raises(InvalidArgument, match="line 1: not an episode"):
        export(tmp_path / "bad", "jsonl", tmp_path / "x")
    (tmp_path / "empty").write_text("")
    with pytest.raises(InvalidArgument, match="no whole episode"):
        export(tmp_path / "empty", "jsonl", tmp_path / "x")
