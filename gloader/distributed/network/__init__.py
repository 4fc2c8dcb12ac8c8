"""The network between a launch's machines: measured rates, and the choice of gloo's interface."""
