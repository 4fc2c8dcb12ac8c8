"""Spill folders: temporary files of one process, found and removed when it is gone."""
