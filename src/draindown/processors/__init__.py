"""The user's fold over the rows of a key in order: its values, its segments, and the file that it
is in.
"""
