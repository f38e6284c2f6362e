"""The native engine: games played without TextWorld, byte for byte the same."""
