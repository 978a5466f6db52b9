"""The lease of a flow: one driver at a time, by kernel locks or by numbered epochs in a shared
store.
"""
