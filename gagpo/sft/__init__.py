"""Supervised training: small models made from nothing, demonstrations, the warm start, and shipping what came of it."""
