"""The network between the machines of a launch: measured rates, and the choice of gloo's interface."""
