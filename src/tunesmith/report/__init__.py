"""What people see of a search: progress while it runs, a score table when it is over, an explanation of a Choice."""
