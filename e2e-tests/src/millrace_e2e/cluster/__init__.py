"""A real Kubernetes of several nodes for the tests: brought up on this machine, or a given one."""
