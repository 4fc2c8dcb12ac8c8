"""The replay of a recorded run: demands and a machine in, predicted seconds out. Pure."""
