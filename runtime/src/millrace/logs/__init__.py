"""What a process writes for people to read: as JSON, seldom twice, with its stacks when asked."""
