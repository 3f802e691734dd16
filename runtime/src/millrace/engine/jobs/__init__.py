"""Windows as Spark jobs: the session, the jobs, and what their deaths say."""
