"""The parts of an error that a user can fix."""

import copy
import pickle

import pytest

from gagpo.base.errors import GagpoError, InvalidArgument, MissingPackage
from gagpo.envs.tasks import UnknownTask


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({}, "temperature must be at least 0 (got -1)"),
        ({"key": "temperature"}, "temperature must be at least 0 (got -1)"),
        ({"where": "run.yaml"}, "run.yaml: temperature must be at least 0 (got -1)"),
        ({"advice": "use 0 for greedy"}, "temperature must be at least 0 (got -1); use 0 for greedy"),
        ({"where": "a", "advice": "b", "key": "c"}, "a: temperature must be at least 0 (got -1); b"),
    ],
)
@pytest.mark.parametrize("kind", [GagpoError, InvalidArgument, MissingPackage, UnknownTask])
def test_the_parts_join_to_one_line_and_survive_a_process(kind, parts, line):
    error = kind("temperature must be at least 0 (got -1)", **parts)
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert str(same) == line
        assert (same.key, same.where, same.advice) == tuple(parts.get(name) for name in ("key", "where", "advice"))


def test_an_error_that_is_placed_further_out_keeps_its_parts():
    inner = InvalidArgument("reward must be a number", key="reward", where="row 3", advice="write 0 or 1")
    outer = GagpoError(inner, where="data.jsonl")
    assert str(outer) == "data.jsonl: row 3: reward must be a number; write 0 or 1"
    assert (outer.key, outer.where, outer.advice) == ("reward", "data.jsonl", "write 0 or 1")
    assert str(outer) == f"data.jsonl: {inner}"
