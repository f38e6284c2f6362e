"""Exported episodes, read back."""

import json
import zlib

import pytest

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.data import Episode, Turn, episode_record, write_episodes
from gagpo.eval.journal import Journal
from gagpo.interop.export import export
from gagpo.settings import load
from gagpo.sft.demonstrations import of_file
from tests.rejections import rejects

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


def test_conversations_are_those_that_sft_reads(journal, tmp_path, tiny):
    from gagpo.sft.messages import read_messages

    assert export(journal, tmp_path / "talk.jsonl") == 2
    rows = [json.loads(line) for line in (tmp_path / "talk.jsonl").read_text().splitlines()]
    assert [message["content"] for message in rows[0]["messages"]] == [
        *("see", "<think>hm</think>do <action>x</action>"),
        *("seen", "y"),
    ]
    episodes = read_messages(tmp_path / "talk.jsonl", tiny[1], 10)
    assert [[turn.response for turn in episode.turns] for episode in episodes] == 2 * [
        ["<think>hm</think>do <action>x</action>", "y"]
    ]


def test_a_runs_conversations_have_the_wording_of_its_prompt(tmp_path):
    environment = "environment: {id: 'gagpo.envs.testing:gagpo-test/Corridor-v0'}\n"
    config = f"name: run\nmodel: m\nalgorithm: gagpo\n{environment}context: {{prompt: tags}}\n"
    (tmp_path / "episodes").mkdir()
    (tmp_path / "config.yaml").write_text(config)
    write_episodes(tmp_path / "episodes" / "e.jsonl", [played(), Episode("lost", turns=played().turns)])
    assert export(tmp_path / "episodes" / "e.jsonl", tmp_path / "talk.jsonl") == 1
    messages = json.loads((tmp_path / "talk.jsonl").read_text())["messages"]
    assert "<action> </action>" in messages[0]["content"] and "see" in messages[0]["content"]


def test_a_programs_episodes_are_refused(corridor, tmp_path):
    """Their requests are no single conversation: sub-agents, system messages and tools would be lost."""
    episode = played()
    episode.info = {"rewritten": 0, "unread": 0, "refused": 0}
    write_episodes(tmp_path / "e.jsonl", [episode])
    with rejects(InvalidArgument, "agent program", where="e.jsonl", advice="rejection_sampling"):
        export(tmp_path / "e.jsonl", tmp_path / "talk.jsonl")
    settings = load(corridor(sft={"data": str(tmp_path / "e.jsonl")}))
    with rejects(InvalidArgument, "agent program", where="e.jsonl"):
        of_file(settings, tmp_path / "e.jsonl")


def test_what_cannot_be_exported(journal, tmp_path):
    with rejects(InvalidArgument, "exists", where=".jsonl"):
        export(journal, journal)
    (tmp_path / "bad").write_text('{"task": 1}\n')
    with rejects(InvalidArgument, key="task", where="bad, line 1"):
        export(tmp_path / "bad", tmp_path / "x")
    write_episodes(tmp_path / "lost", [Episode("lost", turns=played().turns)])
    with rejects(InvalidArgument, "successful episode", where="lost"):
        export(tmp_path / "lost", tmp_path / "x")
    (tmp_path / "empty").write_text("")
    with rejects(InvalidArgument, "whole episode", where="empty"):
        export(tmp_path / "empty", tmp_path / "x")


DAMAGES = {  # path of a key in an episode's record, what it is made, and what is said
    "a turn that is none": (["turns", 0], 3, "turn 0: not an object"),
    "turns that are none": (["turns"], None, "key 'turns' must be a list"),
    "a task that is a number": (["task"], 7, "key 'task' must be a text"),
    "a task type that is a list": (["task_type"], [], "key 'task_type' must be a text"),
    "a sample that is text": (["sample"], "0", "key 'sample' must be a whole number"),
    "a response that is null": (["turns", 0, "response"], None, "turn 0: key 'response' must be a text"),
    "a reward that is text": (["turns", 1, "reward"], "1", "turn 1: key 'reward' must be a finite number"),
    "a reward without end": (["turns", 1, "reward"], float("inf"), "turn 1: key 'reward' must be a finite number"),
    "info that is text": (["info"], "x", "key 'info' must be an object"),
    "an outcome of its own": (["outcome"], "won", "key 'outcome' must be terminated, truncated or failed"),
    "an unhashable reason": (["turns", 0, "invalid"], [], "key 'invalid' must be why a turn is invalid"),
    "ids that are too large": (["turns", 0, "response_ids"], [2**40], "must be lists of numbers"),
    "ids that are text": (["turns", 0, "response_ids"], ["a"], "must be lists of numbers"),
}


@pytest.mark.parametrize(("path", "value", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_episode_is_named_with_its_line_and_key(tmp_path, path, value, said):
    record = episode_record(played(), tokens=True)
    record["turns"][0] |= {"prompt_ids": [1], "response_ids": [1], "logprobs": [-0.5]}
    *above, last = path
    location = record
    for key in above:
        location = location[key]
    location[last] = value
    source = tmp_path / "e.jsonl"
    source.write_text(json.dumps(episode_record(played())) + "\n" + json.dumps(record) + "\n")
    with pytest.raises(InvalidArgument) as caught:
        export(source, tmp_path / "out")
    assert str(caught.value).startswith(f"{source}, line 2: not an episode (") and said in str(caught.value)


@pytest.mark.parametrize("line", [b"\xff\xfe{}", b"[" * 100_000, b"9" * 5000, b"[]", b"{}", b"null"])
def test_a_line_that_is_no_episode_is_named(tmp_path, line):
    source = tmp_path / "e.jsonl"
    source.write_bytes(line + b"\n")
    with rejects(InvalidArgument, "not a", where="e.jsonl, line 1"):
        export(source, tmp_path / "out")


def test_a_journal_with_a_checked_line_that_is_no_episode_is_named(journal, tmp_path):
    text = json.dumps({"episode": {**episode_record(played(sample=2)), "task": 3}}).encode()
    with journal.open("ab") as file:
        file.write(b"%s %08x\n" % (text, zlib.crc32(text)))
    with rejects(GagpoError, "'task'", "a text", where=".jsonl, line 4"):
        export(journal, tmp_path / "out.jsonl")
