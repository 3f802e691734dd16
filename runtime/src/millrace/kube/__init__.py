"""A topology's view, inbox and journal as ConfigMaps of a Kubernetes API server."""
