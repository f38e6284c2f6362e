"""The corridor and its model, as in tests/gagpo."""

from tests.gagpo.conftest import corridor, warm_model

__all__ = ["corridor", "warm_model"]
