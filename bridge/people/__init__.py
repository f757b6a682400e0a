"""Verbs for the people that turns ask, and that say something to turns (protocol §13)."""
