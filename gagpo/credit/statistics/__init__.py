"""Statistics that credits share: within groups, along episodes, and over the states of a task group."""
