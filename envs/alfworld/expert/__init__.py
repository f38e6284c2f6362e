"""A scripted policy that reads only what an agent sees."""
