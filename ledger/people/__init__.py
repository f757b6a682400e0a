"""Questions to people (protocol §13): opened, decided, and looked at."""
