"""One run of a step: the request that starts it, the report that it writes, the card that people
read.
"""
