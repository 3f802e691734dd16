"""A topology on a cluster as the command line sees it: through the API server alone.

``cluster`` finds the API server and says what it refuses, ``topology`` is the resource with its
pods and its config maps, ``servers`` reaches its state servers, and the others are one command
each.
"""
