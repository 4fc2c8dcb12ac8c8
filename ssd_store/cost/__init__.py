"""Cost model: rates of the device, counts of a superbatch, the fastest way to read it."""
