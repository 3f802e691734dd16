"""Chaos: kills the processes, or the pods, of a running topology by a plan, and proves from
outside that nothing was lost, doubled or wrong.

``plan`` says what dies when, ``target`` what can be killed there, ``campaign`` carries a plan out
and times the recoveries, ``ledger`` reads what the sinks hold and judges it, ``expected`` says what
they should hold, ``report`` and ``picture`` show it. ``local`` is a target on this machine,
``cluster`` one whose pods an API server knows. The ledger shares no code with the runtime.
"""
