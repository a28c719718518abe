"""Readers for what the published simulator is given beside the trace."""
