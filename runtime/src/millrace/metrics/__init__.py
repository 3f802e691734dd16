"""What processes tell Prometheus: its names, its counters, its text."""
