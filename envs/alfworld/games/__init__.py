"""Games: generated from seeds or read from folders."""
