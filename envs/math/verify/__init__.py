"""The verifier: from a response to a verdict."""
