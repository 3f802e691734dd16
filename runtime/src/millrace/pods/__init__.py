"""The processes of a topology inside pods: ``python -m millrace.pods ROLE``.

They read what ``homes.pods`` names and ``docs/pods.md`` explains, and run the same code as on one
machine.
"""
