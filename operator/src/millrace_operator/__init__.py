"""The Kubernetes operator of Millrace.

``api`` has the custom resources, and ``python -m millrace_operator.crds`` makes their definitions.
``reconcile.plan`` decides what is to be done for a topology, ``builders`` make its children. There
is no controller yet that carries a plan out: ``millrace run`` plays its part on one machine. The
operator may import ``millrace.topology``, ``millrace.homes``, ``millrace.protocol``,
``millrace.ring`` and the errors, never pyspark, so that its image needs no JVM.
"""

from __future__ import annotations

__version__ = "0.1.0"
