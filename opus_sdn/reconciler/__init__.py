"""The asynchronous shell around the pure core: feeds the core, stores what it decides, drives switches.

Everything runs on one event loop; only the store's writer and the files of a run live in threads.
"""
