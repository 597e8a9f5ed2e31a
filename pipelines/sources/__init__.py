"""Files of text to Arrow records: found, inspected, cut into ranges and read."""

from pipelines.sources.discover import Discovery, discover
from pipelines.sources.files import url_of
from pipelines.sources.reader import read
from pipelines.sources.records import Reading, Records, Reject, Source

__all__ = ["Discovery", "Reading", "Records", "Reject", "Source", "discover", "read", "url_of"]
