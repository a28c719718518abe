"""What our own controller makes of a step: the production core on a virtual clock, driven by a trace."""
