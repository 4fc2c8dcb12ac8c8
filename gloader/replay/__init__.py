"""A recorded run in, predicted seconds out: demands, machines, and the replay of one by the other. Pure."""
