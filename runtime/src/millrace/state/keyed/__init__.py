"""Keyed state inside a process: keys, tables, aggregates, Python dicts, and their objects."""
