"""The pure core: what a job needs, what may be granted, and what a switch has to do for it.

Nothing here does IO, reads a clock or an environment, or knows SQL; time is an argument (seconds since
1970 as the caller sees them). The live controller, the test simulators and the offline engine drive this
same code.
"""
