"""The process around a step: decode the request, run the step, leave a report, exit by its code."""
