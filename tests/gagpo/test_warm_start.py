"""The warm start: what it learns from, and what it refuses."""

import numpy as np
import pytest

from gagpo.batch import Row
from gagpo.settings import SettingsError, load
from gagpo.warm_start import READ, SAID, everything, warm_start


def test_every_token_but_the_first_is_predicted_and_what_is_said_is_told_apart():
    place_K, numbers = np.array([2, 4]), np.arange(2)
    row = Row(np.arange(5, 10, dtype=np.int32), place_K, numbers, numbers, np.zeros(2, np.float32))
    whole = everything(row)
    assert whole.place_K.tolist() == [1, 2, 3, 4]
    assert whole.turn_K.tolist() == [READ, SAID, READ, SAID]


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"context": {"admissible": True}}, "context.admissible=false"), ({"warm_start": None}, "no warm_start section")],
)
def test_what_cannot_be_warmed_up_is_refused(corridor, changes, said):
    with pytest.raises(SettingsError, match=said):
        warm_start(load(corridor(**changes)), quiet=True)
