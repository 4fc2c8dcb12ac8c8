"""Views of commands while they run, and of their results."""
