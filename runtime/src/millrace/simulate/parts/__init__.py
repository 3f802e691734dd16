"""The simulated parts of a topology, and who breaks them."""
