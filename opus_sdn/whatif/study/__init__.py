"""A study: a job that does not exist yet, on a fabric that need not, described in a file of a few lines."""
