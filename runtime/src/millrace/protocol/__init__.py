"""The protocol of windows, recovery, membership and verdicts, without any I/O."""
