"""What gloader is tested with: fault injection, crash simulation and conformance suites."""
