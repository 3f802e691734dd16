"""Where a topology's view, inbox and journal may be kept, and the documents that lie there.

Nothing here does I/O: the driver, the supervisor and the operator share what it says.
"""
