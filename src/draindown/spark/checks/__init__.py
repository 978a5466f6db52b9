"""The check step: judge unpublished rows, then publish or refuse them."""
