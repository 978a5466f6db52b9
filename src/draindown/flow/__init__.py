"""State that a flow keeps between runs: checkpoint, generations, quarantine, tombstones,
withdrawals, schema drift.
"""
