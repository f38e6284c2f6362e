"""Sources of pages by name."""

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.web.source import make_source


def test_an_option_of_a_source_has_the_type_of_its_parameter() -> None:
    with pytest.raises(InvalidArgument, match=r"^source folder: folder must be text \(got 5\)"):
        make_source("folder", {"folder": 5})
