"""Gymnasium's vector environments take every environment of this package, in this process and in others."""

from __future__ import annotations

import copy
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

import gagpo.envs.testing  # noqa: F401 (registers the corridor)
from gagpo.envs.base import Text
from tests.folders import without

COUNTS = {"train": 2, "valid_seen": 1, "valid_unseen": 1}
MODES = ("async", "sync")
KWARGS: dict[str, dict[str, Any]] = {
    "gagpo/ALFWorld-v0": {"counts": COUNTS},
    "gagpo/MCP-v0": {"command": ["python", str(Path(__file__).parent / "mcp" / "lying_server.py"), "honest"]},
    "gagpo/Math-v0": {"size": 20, "test_size": 10},
    "gagpo/SQL-v0": {"size": 20, "test_size": 10},
    "gagpo/Storeroom-v0": {},
    "gagpo/WebShop-v0": {"products": 100},
    "gagpo-test/Corridor-v0": {},
}
# They need a model, a browser, Java, bubblewrap.
NOT_HERE = {"gagpo/Program-v0", "gagpo/Web-v0", "gagpo/ScienceWorld-v0", "gagpo/Terminal-v0"}
for removed_id in filter(without, [*KWARGS, *NOT_HERE]):
    KWARGS.pop(removed_id, None)
    NOT_HERE.discard(removed_id)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("data")
    (folder / "sums.jsonl").write_text(json.dumps({"question": "What?", "answer": 1, "split": "train"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GAGPO_DATA", str(folder))
        yield folder


def test_every_registered_environment_is_listed_here() -> None:
    actual = {name for name in gymnasium.registry if name.startswith("gagpo/")}
    assert actual == {name for name in KWARGS if name.startswith("gagpo/")} | NOT_HERE


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", KWARGS)
def test_it_runs_as_a_vector(env_id: str, mode: str, data: Path) -> None:
    kwargs = dict(KWARGS[env_id])
    if env_id == "gagpo/MCP-v0":
        pytest.importorskip("mcp", reason="the optional package mcp is not installed")
        kwargs["tasks"] = str(data / "sums.jsonl")
    with closing(gymnasium.make(env_id, **kwargs)) as single:
        observation, _ = single.reset(seed=3)
    with closing(gymnasium.make_vec(env_id, 2, vectorization_mode=mode, **kwargs)) as env:
        first, _ = env.reset(seed=[3, 4])
        assert first[0] == observation and type(first[1]) is str
        observed, rewards, *_ = env.step(("left", "no such action 走"))
    assert [type(text) for text in observed] == [str, str] and rewards.shape == (2,)
    assert first[0] == observation, "a batch of observations stays as it was"


def test_texts_cross_the_memory_unchanged() -> None:
    space = spaces.Dict({"text": Text(max_length=5), "number": spaces.Discrete(3)})
    memory = create_shared_memory(space, n=3, ctx=multiprocessing)
    batch = read_from_shared_memory(space, memory, n=3)
    texts = ("", "走👩é", "\ud800\0a")
    for location, text in enumerate(("longe", *texts[1:])):
        write_to_shared_memory(space, location, {"text": text, "number": 1}, memory)
    before = copy.deepcopy(batch)["text"]
    write_to_shared_memory(space, 0, {"text": "", "number": 1}, memory)
    assert before == ("longe", *texts[1:])
    assert (tuple(batch["text"]), batch["text"][1:]) == (texts, texts[1:])
    with pytest.raises(ValueError, match=r"does not fit into the shared memory: call gymnasium\.make_vec with"):
        write_to_shared_memory(space, 0, {"text": "x" * 100, "number": 1}, memory)
