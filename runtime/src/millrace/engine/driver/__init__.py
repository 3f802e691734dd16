"""The driver process: the state machine, its loop, and the real parts around it."""
