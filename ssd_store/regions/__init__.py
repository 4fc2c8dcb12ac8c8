"""Regions of the spill folder that a sweep writes, one for each batch or frontier, and their way back into memory."""
