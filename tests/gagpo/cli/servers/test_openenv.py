"""The command that serves an environment over OpenEnv."""

from gagpo.base.errors import MissingPackage
from gagpo.cli import servers
from gagpo.cli.servers.openenv import openenv
from gagpo.envs.lookup import UnknownEnvironment
from tests.rejections import rejects


def test_advice_names_the_command():
    assert servers.advice("gagpo/Math-v0") == "`gagpo openenv gagpo/Math-v0` serves it"


def test_serving_what_is_not_there_is_refused():
    """With OpenEnv installed or without: the one is missing, or the other."""
    with rejects((MissingPackage, UnknownEnvironment)):
        openenv("gagpo/No-v0", port=0)
