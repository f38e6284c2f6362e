"""Training: the loop and its parts. docs/how-it-works.md follows a turn from its task to the report."""
