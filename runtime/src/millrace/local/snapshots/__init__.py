"""Snapshots from outside the driver: asking for one, and restoring one."""
