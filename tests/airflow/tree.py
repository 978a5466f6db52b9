"""A pipeline of four flows, three of which read one another: daily reads hourly, which reads
events.
"""

FLOWS = ("daily", "events", "hourly", "other")
# daily is written before what it reads, and reads what hourly publishes
DECLARED = """\
flows:
  daily:
    source: {table: hourly}
    window: {time: window_start, size: 1 day, measures: {n: count(*)}}
  events:
    source: {files: landing/events/*.json, format: json}
    columns: {id: string not null, at: timestamp}
  hourly:
    source: {table: events}
    window: {time: at, size: 1 hour, measures: {n: count(*)}}
  other:
    source: {files: landing/other/*.json, format: json}
    columns: {id: string not null}
"""
