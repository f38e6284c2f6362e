"""Branches: tries that begin again in the middle of others of their group, so that the group is a tree.

The world is put back to where the other stood (or its actions are replayed, where it cannot be), the turns up to there
are shared, token for token, and from there on the branch plays by draws of its own.
"""
