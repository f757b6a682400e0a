"""Budgets: what may be spent, what is reserved and what was spent."""
