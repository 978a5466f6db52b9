"""Sessions of users: events of a user, each at most 30 minutes after the one before."""

from datetime import timedelta


class Sessionizer:
    """One row per session. It is running while `session_end` lies ahead: more events may change it until then."""

    GAP = timedelta(minutes=30)

    def process(self, snapshot, rows):
        """Count the events of the session, which `expire: 30 minutes` ends."""
        events, pages = (snapshot["events"], snapshot["pages"]) if snapshot else (0, [])
        pages = sorted({*pages, *(row["page"] for row in rows if row["page"] is not None)})
        last = rows[-1]["event_time"]
        return [], {"session_end": last + self.GAP, "events": events + len(rows), "pages": pages}

    def running(self, snapshot):
        """Return the session as it is at its newest event."""
        return [snapshot | {"pages": len(snapshot["pages"])}]
