"""Budgets: what turns, trees of turns and projects may spend (protocol §15)."""
