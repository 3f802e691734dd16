"""Loops over arrays that are compiled, and what they are compiled with."""
