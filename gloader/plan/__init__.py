"""Budgets of memory and disk: what is there, and who gets how much."""
