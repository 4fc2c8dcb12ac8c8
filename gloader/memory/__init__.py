"""Who gets how much memory and disk."""
