"""`python -m lab.explore`: takes every order of a small world's statements on a real database (docs/exploration.md).

A *world* is a starting ledger and the *moves* that its actors may make: the ledger's own functions with fixed ids. Each
state is the database, folded to a canonical form. The search is breadth first, so each path to a state is a shortest
one. In every state the audit holds, no final row has changed, and the safety net alone brings every turn to its end.
"""
