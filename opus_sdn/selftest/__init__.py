"""`opus selftest`: does this installation control a switch as it promises? No torch, no GPU, a few seconds.

A real controller with an emulated switch and four ranks without torch go through four topology changes. What
is checked comes from three sides: the controller's history, the ranks' own clocks, and a traffic witness that
knows nothing of the controller's locks.
"""

from opus_sdn.selftest.checks import Check
from opus_sdn.selftest.rank import SelftestError
from opus_sdn.selftest.run import PhaseResult, Report, Say, run_selftest

__all__ = ["Check", "PhaseResult", "Report", "Say", "SelftestError", "run_selftest"]
