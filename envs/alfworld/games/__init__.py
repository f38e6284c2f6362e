"""Games: generated from seeds, read from folders, varied for comparisons."""
