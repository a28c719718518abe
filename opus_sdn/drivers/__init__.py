"""Drivers of optical circuit switches, the emulated switch, and what watches over it."""
