"""Files of projects: what the ledger knows of them (protocol §22)."""
