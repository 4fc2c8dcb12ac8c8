"""Downloads and archives, extracted through checked paths."""
