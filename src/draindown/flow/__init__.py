"""What a flow remembers between runs: checkpoint, generations, quarantine, tombstones, withdrawals, schema drift."""
