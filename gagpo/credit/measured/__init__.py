"""Credits that read the policy's own probabilities, which the trainer measures before it gives credit."""
