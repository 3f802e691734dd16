"""The driver that stands by, as the supervisor keeps it."""
