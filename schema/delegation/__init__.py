"""Agents that delegate to others (protocol §12): who may, what they ask for, and what they are answered."""
