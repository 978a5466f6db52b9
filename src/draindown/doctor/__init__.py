"""Check a flow's state for consistency: checkpoint, intake, target, ledger, quarantine, lease,
publication, setup.
"""
