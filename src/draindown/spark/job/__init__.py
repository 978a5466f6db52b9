"""The process of a step: decode the request, run the step, write its report, exit with its code."""
