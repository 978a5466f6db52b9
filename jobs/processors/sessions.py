"""Sessions of users: events of a user, each at most 30 minutes after the one before."""

from datetime import timedelta


class Sessionizer:
    """One row per session. It is running while `session_end` lies ahead: more events may change it
    until then.
    """

    GAP = timedelta(minutes=30)

    def process(self, state, rows):
        """Count the events of the session, which `gap: 30 minutes` ends."""
        events, items = (state["events"], state["items"]) if state else (0, [])
        items = sorted({*items, *(row["item"] for row in rows if row["item"] is not None)})
        last = rows[-1]["happened_at"]
        return [], {"session_end": last + self.GAP, "events": events + len(rows), "items": items}

    def running(self, state):
        """Return the session as it is at its newest event."""
        return [state | {"items": len(state["items"])}]
