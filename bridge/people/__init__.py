"""What people ask of turns that wait for them (protocol §13)."""
