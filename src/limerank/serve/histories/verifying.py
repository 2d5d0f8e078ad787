"""The whole file read once: whether all of it is as it was written."""

from __future__ import annotations

from limerank.serve.histories.file import EventFile, Opened
from limerank.serve.histories.records import digest, is_whole


def verify(file: EventFile, opened: Opened) -> int:
    """Raise if anything is damaged or lost; how many events there are."""
    connection = opened.connection
    (said,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if said != "ok":
        raise file.damaged(f"a page ({' '.join(said.split())})")
    counts: dict[int, list[int]] = {}
    highest = 0
    for row in connection.execute("SELECT * FROM events"):
        if not is_whole(row):
            raise file.damaged("an event's record")
        counts.setdefault(row[0], [0, 0])[row[1]] += 1
        highest = max(highest, row[2])
    total = number = 0
    for values in connection.execute("SELECT * FROM users"):
        user = file.checked_user(values)
        others, read = counts.pop(user.number, [0, 0])
        named = user.user_id is None or digest(opened.salt, user.user_id) == user.digest
        if (user.others, user.read) != (others, read) or not named:
            raise file.damaged("an event's record")
        total, number = total + others + read, max(number, user.number)
    users, sequence = connection.execute("SELECT users, sequence FROM state").fetchone()
    if counts or users < number or sequence < highest:
        raise file.damaged("a user's record")
    return total
