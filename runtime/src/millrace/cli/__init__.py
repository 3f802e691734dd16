"""The ``millrace`` command: one module for each command, put together in ``app``.

A command module offers ``register(app)``. It imports what needs the extra ``millrace[engine]``
only when the command runs, so that the others work with the base package alone.
"""
