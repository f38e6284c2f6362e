"""How the cost of a run grows with processors: a discrete-event simulation of sampling, updating and transfer."""
