"""Finds what slows an LSTM down or breaks it on this machine and in this set-up, its cost, and the fix.

A check is a function of the facts that it needs, so that a test can plant each fault. `examine` gathers the facts
and runs all checks. Nothing here imports a framework.
"""

from cellerate.machine.doctor.core import Core
from cellerate.machine.doctor.examination import examine
from cellerate.machine.doctor.finding import Finding
from cellerate.machine.doctor.load import Others, busy_now

__all__ = ["Core", "Finding", "Others", "busy_now", "examine"]
