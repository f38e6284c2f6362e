"""Learning from the environment's expert and from the policy's own good episodes."""
