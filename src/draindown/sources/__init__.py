"""The input sources of a flow: what every kind keeps to, and one package per kind."""
