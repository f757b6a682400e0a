"""Pages of turns: what goes on now, a turn, and its tree."""
