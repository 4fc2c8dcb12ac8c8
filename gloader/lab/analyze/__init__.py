"""What a recorded run spent its time on, and what it would take if something were different."""
