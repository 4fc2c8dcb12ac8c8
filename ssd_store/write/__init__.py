"""Writers: arrays into a new directory that appears whole or not at all."""
