"""Verbs for the people that turns ask (protocol §13)."""
