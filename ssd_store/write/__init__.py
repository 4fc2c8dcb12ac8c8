"""Writers: arrays into a new directory that appears completely or not at all."""
