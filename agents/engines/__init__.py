"""Engines: what samples tokens, behind one protocol."""
