"""The doctor: looks at a machine, a place for a store, a store or a server, and says what to do about what is wrong.

Rules: it changes nothing and makes no store. It writes one file of its own, to see how fast the disk is, and removes
it. Each check answers with findings, which are sentences, and never raises for what it finds.
"""

from penstock.doctor.examining import Patient, examine
from penstock.doctor.findings import Finding, Status

__all__ = ["Finding", "Patient", "Status", "examine"]
