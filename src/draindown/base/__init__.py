"""What every package may use: errors and their exit codes, findings, progress, the clock, text
formatting.

This package imports nothing of draindown.
"""
