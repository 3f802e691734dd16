"""The custom resources: what may stand in them, what is told in their status, and their CRDs."""
