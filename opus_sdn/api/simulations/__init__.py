"""Replays of training steps on request: accepted here, run by processes of their own, one after the other."""
