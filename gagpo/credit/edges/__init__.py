"""Credit of the transitions between the states of a task group."""
