"""Child processes: the fork server, the jobs that run in it, and sessions that hold a loaded artifact."""
