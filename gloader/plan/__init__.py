"""Memory and disk budgets: the available resources and their division."""
