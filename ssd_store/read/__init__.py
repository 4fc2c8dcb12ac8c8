"""Readers: rows from the device into memory, verified."""
