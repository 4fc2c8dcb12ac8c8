"""A recorded run's replay: demands and a machine in, predicted seconds out. Pure."""
