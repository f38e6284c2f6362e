"""TextWorld as the reference engine, and comparisons of the native engine with it."""
