"""The steps of an update: the optimiser, which steps are left out, and what is told of them."""
