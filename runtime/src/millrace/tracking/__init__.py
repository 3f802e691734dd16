"""Tuple tracking: ids over arrays, ack messages, the ack log and the acker process.

Nothing is imported here: the acker process works without numba, tasks without the server.
"""
