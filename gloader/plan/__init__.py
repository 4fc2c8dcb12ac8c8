"""Plans for memory and spill disk: the available resources, a run's demand, and the division of the budgets."""
