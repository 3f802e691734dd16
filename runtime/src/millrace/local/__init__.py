"""Runs a topology on one machine: work folder, supervisor, takeover and what the CLI shows."""
