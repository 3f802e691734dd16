"""A compiled topology, and what goes with it to workers."""
