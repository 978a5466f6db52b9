"""Words that every package may use: errors and their exit codes, findings, progress, the clock, formatting of text.

Imports nothing of draindown.
"""
