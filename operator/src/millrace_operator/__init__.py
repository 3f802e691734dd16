"""The Kubernetes operator of Millrace.

A skeleton for now: ``millrace run`` plays the operator's part on one machine. The operator may
import ``millrace.topology``, ``millrace.protocol``, ``millrace.ring`` and the errors, never
pyspark, so that its image needs no JVM.
"""

from __future__ import annotations

__version__ = "0.1.0"
