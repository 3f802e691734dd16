"""Lua scripts of the redis sink."""
