"""People in the loop (protocol §13): what they say to a turn while it runs."""
