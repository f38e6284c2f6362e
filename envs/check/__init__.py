"""Proofs of an environment's promises, and its speed."""
