"""Restores a topology from a snapshot: what is the same on one machine and in pods.

``local.snapshots.restoring`` has the steps in a work folder, ``restoring.pods`` those of a driver's
pod, each with what follows if the process dies between two of them.
"""
