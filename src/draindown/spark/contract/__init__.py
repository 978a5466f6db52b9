"""The contract of a landing flow: parse and cast records to typed columns, or refuse them with a
reason.
"""
