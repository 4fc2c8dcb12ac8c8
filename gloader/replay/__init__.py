"""A recorded run's replay: a simulation that turns recorded work and a machine into predicted seconds. Pure."""
