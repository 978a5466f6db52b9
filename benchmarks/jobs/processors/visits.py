"""Sessions of users, as `session` of SQL has them: visits, amounts, and an end half an hour after
the last visit.
"""

from datetime import timedelta


class Sessionizer:
    """One row per session."""

    GAP = timedelta(minutes=30)

    def process(self, state, rows):
        """Count the visits of the session."""
        visits, amount = (state["visits"], state["amount"]) if state else (0, 0)
        amount += sum(row["amount"] for row in rows)
        return [], {
            "session_end": rows[-1]["event_time"] + self.GAP,
            "visits": visits + len(rows),
            "amount": amount,
        }

    def running(self, state):
        """Return the session as it is at its newest visit."""
        return [state]
