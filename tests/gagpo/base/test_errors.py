"""The parts of an error that a user can fix."""

import copy
import pickle

import pytest
from pydantic import ValidationError, model_validator

from gagpo.base.errors import GagpoError, InvalidArgument, MissingPackage
from gagpo.base.options import Options, explain
from gagpo.envs.tasks import UnknownTask
from tests.rejections import rejects


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
    again = UnknownTask(inner)  # of another class, at the same place
    assert (again.key, again.where, again.advice) == ("reward", "row 3", "write 0 or 1") and str(again) == str(inner)


class Inner(Options):
    size: int = 1

    @model_validator(mode="after")
    def _check(self):
        if self.size > 3:
            raise InvalidArgument("size must be at most 3", key="size", advice="choose 1, 2 or 3")
        return self


class Outer(Options):
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("values", "key", "name", "advice"),
    [
        ({"inner": {"size": 4}}, "inner.size", "at most 3", "choose 1, 2 or 3"),
        ({"inner": {"size": "x"}}, "inner.size", "got 'x'", ""),
        ({"inner": {"sise": 1}}, "inner.sise", "inner.sise", ""),
        ({"iner": {}}, "iner", "iner", "nearest: inner"),
    ],
)
def test_an_error_of_options_has_the_key_the_owner_and_the_advice(values, key, name, advice):
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(values)
    with rejects(InvalidArgument, name, key=key, where="engine mine", advice=advice):
        raise explain(caught.value, Outer.model_fields, "engine mine")


def test_several_errors_of_options_are_one_line():
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"inner": {"size": "x"}, "iner": 1})
    with rejects(InvalidArgument, "engine mine: inner.size", "engine mine: unknown option 'iner'"):
        raise explain(caught.value, Outer.model_fields, "engine mine")


def test_a_rejection_names_what_is_missing():
    error = InvalidArgument("size must be at most 3 (got 4)", key="size", where="a/run.yaml", advice="choose 1")
    with rejects(InvalidArgument, "got 4", key="size", where="run.yaml", advice="1"):
        raise error
    for parts in ({"key": "seed"}, {"where": "a"}, {"advice": "4"}):
        with pytest.raises(AssertionError), rejects(InvalidArgument, **parts):
            raise error
    with pytest.raises(AssertionError), rejects(InvalidArgument, "got 5"):
        raise error
