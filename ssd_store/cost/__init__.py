"""Cost model: device rates, counts of a superbatch, and the fastest way to read it."""
