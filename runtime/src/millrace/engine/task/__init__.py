"""What runs inside a Python worker that Spark forked."""
