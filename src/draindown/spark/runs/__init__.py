"""Steps that write: drain, replays, rebuild, withdrawal, compaction."""
