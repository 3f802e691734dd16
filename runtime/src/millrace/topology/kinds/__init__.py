"""The kinds of sources, processors and sinks: one module declares one kind.

``base`` says what a kind declares, ``registry`` lists those that ship with Millrace and finds those
of other packages. Nothing here needs Arrow, Spark or a server: what runs a kind is named as
``module:Class`` and imported where it runs.
"""
