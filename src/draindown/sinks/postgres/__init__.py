"""A Postgres table as a sink: each batch is one transaction, which records the batch beside the
table.

`connection` connects and bounds every wait, `failures` names errors, `target` looks at the table,
`types` says which columns hold which types, `records` keeps the table of batches, `staging` copies
rows, `sink` is the port's member.
"""
