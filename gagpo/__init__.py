"""Learning: credit, objectives and the trainer. ``gagpo.credit`` and ``gagpo.objectives`` stand on their own."""
