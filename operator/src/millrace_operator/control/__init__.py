"""What turns without end: the queue of topologies, those who work it off, and how they are."""
