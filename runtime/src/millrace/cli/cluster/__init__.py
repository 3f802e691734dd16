"""The commands about a topology of a cluster: ``--namespace`` or ``--context`` asks for them."""
