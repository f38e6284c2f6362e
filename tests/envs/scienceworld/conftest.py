"""ScienceWorld's simulator, for the tests that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gagpo.base.errors import MissingPackage
from gagpo.envs.scienceworld.simulator import Simulator, simulator_command


@pytest.fixture(scope="session")
def simulator() -> Iterator[Simulator]:
    """One Java process for all tests; skipped with the reason where Java or the package is missing."""
    skip_without_simulator()
    shared = Simulator()
    yield shared
    shared.close()


@pytest.fixture
def installed() -> None:
    """Skip the test where Java or the package is missing."""
    skip_without_simulator()


def skip_without_simulator() -> None:
    try:
        simulator_command()
    except MissingPackage as error:
        pytest.skip(str(error))
