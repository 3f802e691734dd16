"""Runs window attempts on Spark: compiler, passes, envelope exchange, workers and session."""
