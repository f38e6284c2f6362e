"""Programs as environments: a local gateway stands in for the model server that they ask."""

from gagpo.envs.rewards.transcripts import last_answer, last_call

__all__ = ["last_answer", "last_call"]
