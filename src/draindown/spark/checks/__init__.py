"""The check step: judge what is not published yet, publish it or refuse it."""
