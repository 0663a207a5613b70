"""The checks of `penstock doctor`: of a machine, a place for a store, a store or a server, with advice.

The doctor changes nothing and creates no store. It writes one file, to measure how fast the disk syncs, and removes it.
Checks return findings and never raise.
"""

from penstock.doctor.checks import CheckResult, CheckStatus, Target, examine

__all__ = ["CheckResult", "CheckStatus", "Target", "examine"]
