"""What people ask of turns that are under way (protocol §13)."""
