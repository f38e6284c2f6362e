"""The native engine: runs games without TextWorld, with byte-identical texts."""
