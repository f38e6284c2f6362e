"""One trainer in many processes: who is who, what is dealt out, what is summed, and what is sharded."""
