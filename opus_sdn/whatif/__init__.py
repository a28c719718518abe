"""Offline what-if: replays a training step on a fabric that need not exist.

Nothing heavy is imported here or below at import time: a replay of eight ranks takes less time than
starting a web framework does, so the parts of this package load one another only when they are used.
"""
