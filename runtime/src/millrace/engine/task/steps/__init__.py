"""How each kind of component handles the batches that reach it inside a task."""
