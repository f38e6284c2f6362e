"""Tool calls as model families write them, and the tools of a world as a model is told of them."""
