"""A warm sandbox for all tests of the terminal; they are skipped where none can be made."""

import pytest

from gagpo.base.sandbox import SandboxUnavailable
from gagpo.envs.terminal.backends.bubblewrap import BubblewrapSandbox


@pytest.fixture(scope="session")
def sandbox():
    sandbox = BubblewrapSandbox()
    try:
        sandbox.start({})
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield sandbox
    sandbox.close()
