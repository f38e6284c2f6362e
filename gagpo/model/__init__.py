"""Models: loading, the forward pass, attention, adapters; engines and learning stand on it."""
