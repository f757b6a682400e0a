"""Verbs by which people see and steer budgets (protocol §15)."""
