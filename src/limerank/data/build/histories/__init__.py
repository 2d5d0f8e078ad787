"""Where the history of a request comes from: the earlier events of its user, or a list that stands in the log."""

from pathlib import Path

from limerank.data.build.dictionary import Dictionary
from limerank.data.build.histories.from_time import FromTime
from limerank.data.build.histories.ready_made import ReadyMade
from limerank.data.build.histories.source import HistorySource, Pointers
from limerank.data.raw.log import RawLog

__all__ = ["HistorySource", "Pointers", "history_source"]


def history_source(raw: RawLog, scratch: Path, users: Dictionary, items: Dictionary) -> HistorySource:
    """The source that a log's schema asks for."""
    spec = raw.schema.histories
    return FromTime() if spec is None else ReadyMade(spec, raw, scratch, users, items)
