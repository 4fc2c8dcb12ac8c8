"""The network between the machines of a launch: what it does, which interface gloo takes, and which would be faster."""
