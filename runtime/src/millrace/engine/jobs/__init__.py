"""Windows in Spark: the session, the jobs, and what their deaths say."""
