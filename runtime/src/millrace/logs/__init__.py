"""What a process logs: as JSON for programs, seldom twice, with its stacks when it is asked."""
