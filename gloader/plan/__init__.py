"""Plans for memory and for spill disk (disk space for a run's temporary data).

The modules measure the available resources, describe a run's demand, and divide the budgets.
"""
