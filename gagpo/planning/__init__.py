"""What a run takes of a machine, and whether the machine computes right."""
