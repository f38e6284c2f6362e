"""What an agent did, turn by turn: one static folder of pages that open from disk, in any browser."""
