"""ALFWorld: household tasks as text games, generated or released, on a choice of engines."""
