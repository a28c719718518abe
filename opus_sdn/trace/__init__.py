"""Recorded communication of training runs: reading, windows between phases, tables, traces for what-if."""
