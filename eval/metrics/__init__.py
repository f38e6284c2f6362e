"""The metrics that training logs: the register of what each one is, and what they say of a run's health."""
