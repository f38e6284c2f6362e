"""Sources of pages by name."""

from gagpo.base.errors import InvalidArgument
from gagpo.envs.web.source import make_source
from tests.rejections import rejects


def test_an_option_of_a_source_has_the_type_of_its_parameter() -> None:
    with rejects(InvalidArgument, "5", key="folder", where="source folder"):
        make_source("folder", {"folder": 5})
