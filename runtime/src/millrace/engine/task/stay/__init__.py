"""A task that stays with its worker, and what it does of windows whose turn has not come."""
