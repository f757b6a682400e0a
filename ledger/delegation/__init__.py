"""Whom a turn may delegate to, and agents that it provisions (protocol §12); the children themselves are in `trees`."""
