"""The diary of an evaluation: torn anywhere, opened twice, or of somebody else."""

import json
import math
import os
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.base.errors import GagpoError
from gagpo.data import Episode, Turn, episode_from_record, episode_record
from gagpo.eval.journal import Journal, JournalError, read_journal, weights_identity
from tests.rejections import rejects

KEY = {"model": "m", "panel": "abc"}


def episode(task, sample=0, **info):
    turns = [Turn("see", "say", "do", reward=0.1, invalid="refused", state="s"), Turn("é\ud800", "", "", 1.0)]
    return Episode(task, "kind", "test", 3, sample, 7, 0.4, turns, True, "terminated", 1, info={"cost": 0.5, **info})


def fill(folder, count=5):
    with Journal(folder, KEY) as journal:
        for number in range(count):
            journal.append(episode(f"t{number}"))
    return journal.path


def test_an_episode_comes_back_as_it_was():
    item = episode("t", answer="4")
    assert episode_record(episode_from_record(json.loads(json.dumps(episode_record(item))))) == episode_record(item)
    item.end_observation, item.end_state = "The attic.", "a"
    back = episode_from_record(json.loads(json.dumps(episode_record(item))))
    assert (back.end_observation, back.end_state) == ("The attic.", "a")
    assert "end_state" not in episode_record(Episode("t"))
    item.turns[0] = replace(item.turns[0], sent="<|user|>see")
    assert episode_from_record(episode_record(item)).turns[0].sent == "<|user|>see"
    tokens = {"response_ids": np.array([1, 2], np.int32), "logprobs": np.array([-0.5, -1], np.float32)}
    item.turns[0] = replace(item.turns[0], **tokens)
    assert episode_record(episode_from_record(episode_record(item, tokens=True)), tokens=True) == episode_record(
        item, tokens=True
    )


def test_nothing_is_kept_twice(tmp_path):
    fill(tmp_path)
    path = fill(tmp_path, 7)
    assert [item.task for item in read_journal(path)[1]] == [f"t{n}" for n in range(7)]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.binary(max_size=30))
def test_torn_anywhere_it_keeps_what_is_whole(tmp_path_factory, cut, rubbish):
    path = fill(tmp_path_factory.mktemp("j"))
    text = path.read_bytes()
    cut = cut % (len(text) + 1)
    full = max(0, text[:cut].count(b"\n") - 1)
    head = text.index(b"\n") + 1
    path.write_bytes(text[:cut] + (rubbish if cut > head else b""))
    with Journal(path.parent, KEY) as journal:
        assert len(journal.episodes) == full
        journal.append(episode("new"))
    assert [item.task for item in read_journal(path)[1]] == [*(f"t{n}" for n in range(full)), "new"]


def test_other_settings_have_another_file(tmp_path):
    path = fill(tmp_path)
    with Journal(tmp_path, {**KEY, "panel": "abd"}) as journal:
        assert journal.path != path and not journal.episodes


def test_what_is_no_journal_of_this_evaluation_is_left_alone(tmp_path):
    path = fill(tmp_path)
    for text in (b"a diary\nof somebody\n", path.read_bytes().replace(b'"abc"', b'"xyz"', 1)):
        path.write_bytes(text)
        with rejects(JournalError, advice="move it away"), Journal(tmp_path, KEY):
            pass
        assert path.read_bytes() == text
    with rejects(JournalError, "journal", where=".jsonl"):
        read_journal(path)


HOLD = """
import sys, time
from pathlib import Path
from gagpo.eval.journal import Journal
with Journal(Path(sys.argv[1]), {"model": "m", "panel": "abc"}):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_process_at_a_time(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    with rejects(JournalError, "another process", where=".jsonl"), Journal(tmp_path, KEY):
        pass
    other.kill()
    other.wait()
    with Journal(tmp_path, KEY):  # a lock dies with its holder
        pass


def test_amounts_are_summed(tmp_path):
    with Journal(tmp_path, KEY) as journal:
        journal.append(episode("a"))
        journal.note_spent({"cost": 0.25, "requests": 2})
        journal.note_spent({"requests": -1})
    with Journal(tmp_path, KEY) as journal:
        assert (journal.spent("cost"), journal.spent("requests"), journal.spent("tokens")) == (0.25, 1, 0)


def test_threads_write_whole_lines(tmp_path):
    with Journal(tmp_path, KEY) as journal, ThreadPoolExecutor(8) as threads:
        for number in range(200):
            threads.submit(journal.note_spent, {"requests": 1})
            threads.submit(journal.append, episode(f"t{number}"))
    with Journal(tmp_path, KEY) as journal:
        assert journal.spent("requests") == 200 and len(journal.episodes) == 200


@pytest.mark.parametrize(
    "record",
    [[1], {"episode": 3}, {"episode": {}}, {"spent": 3}, {"spent": {"cost": "much"}}, {"spent": {"cost": math.nan}}],
)
def test_a_whole_line_that_nobody_wrote_is_named(tmp_path, record):
    path = fill(tmp_path, 1)
    for text in (json.dumps(record).encode(), b"[" * 100_000):
        path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n%s %08x\n" % (text, zlib.crc32(text)))
        with rejects(GagpoError, path) as caught, Journal(tmp_path, KEY):
            pass
        assert "\n" not in str(caught.value)


def test_rewritten_weights_are_other_weights(tmp_path):
    (tmp_path / "w").write_bytes(b"1234")
    before = weights_identity(tmp_path)
    assert before == weights_identity(tmp_path)
    (tmp_path / "w").write_bytes(b"1235")
    os.utime(tmp_path / "w", ns=(1, 1))
    assert before != weights_identity(tmp_path)
