"""The input sources of a flow, one package per kind. `batch_size` bounds the batches of every kind."""
