"""The Kubernetes operator of Millrace.

``api`` has the custom resources, and ``python -m millrace_operator.crds`` makes their definitions.
``reconcile.plan`` decides what is to be done for a topology, ``builders`` make its children,
``kube`` observes and carries a plan out, and ``python -m millrace_operator`` does so without end.
The operator may import ``millrace.topology``, ``millrace.homes``, ``millrace.kube``,
``millrace.protocol``, ``millrace.ring``, health and the errors, never pyspark, so that its image
needs no JVM.
"""

from __future__ import annotations

__version__ = "0.1.0"
