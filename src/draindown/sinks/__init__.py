"""Where a flow sends its changed rows beside its table: a port, and a package per kind of sink."""
