"""People in the loop (protocol §13): questions to people, and what they say to turns."""
