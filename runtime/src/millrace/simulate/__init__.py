"""Runs the production protocol in a simulated world, from one seed, and checks every step.

``millrace.protocol``'s driver, acker and state server machines run unchanged; processes, network,
time, tasks, sinks and the view store are simulated, and all of them fail. What happens is written
to a ``History``; the checkers judge that history and share no code with what they judge, except
the values of ``protocol.types``. Deliberate protocol bugs (``bugs``) show that they can see.

Start with ``python -m millrace.simulate --help``.
"""
