"""Tools for tests: fault injection, crash simulation, conformance suites and the resume harness."""
