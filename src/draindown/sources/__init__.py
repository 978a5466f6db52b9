"""Where the input of a flow comes from. One package per kind of source; `batch_size` bounds a batch of any kind."""
