"""The Kubernetes operator of Millrace.

No controller yet: ``millrace run`` plays the operator's part on one machine. ``api`` has the custom
resources, and ``python -m millrace_operator.crds`` makes their definitions. The operator may
import ``millrace.topology``, ``millrace.protocol``, ``millrace.ring`` and the errors, never
pyspark, so that its image needs no JVM.
"""

from __future__ import annotations

__version__ = "0.1.0"
