"""Facts of a result: the arguments of its environment without the defaults, as they are typed."""

import pytest

from gagpo.eval.summary import _changed_arguments
from tests.folders import needs

ALFWORLD = "gagpo/ALFWorld-v0"


@pytest.mark.parametrize(
    ("environment", "kwargs", "texts"),
    [
        (ALFWORLD, {"size": "small", "seed": 0, "task_types": None, "held_out": 0.0}, []),
        (ALFWORLD, {"size": "full", "counts": {"train": 20}, "seed": 1}, ["counts.train=20", "seed=1", "size=full"]),
        pytest.param(
            "gagpo/Terminal-v0", {"levels": [1, 2, 3], "seed": 3}, ["seed=3"], marks=needs("envs/terminal")
        ),
        ("not/here-v0", {"a": {}, "b": "x"}, ["a={}", "b=x"]),
        ("no_such_module:X-v0", {"n": 1}, ["n=1"]),
    ],
)  # fmt: skip
def test_arguments_are_shown_without_defaults_as_they_are_typed(environment, kwargs, texts):
    assert _changed_arguments(environment, kwargs) == texts
