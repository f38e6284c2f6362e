"""Plans, profiles and the doctor: what a run needs of a machine, and whether the machine works."""
