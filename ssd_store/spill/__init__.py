"""Spill folders: temporary files of one process, found and removed after its end."""
