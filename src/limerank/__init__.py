"""limerank: rank tens of thousands of candidates per request, near the accuracy of cross-attention.

A candidate's cost does not grow with the history.
"""

from importlib.metadata import PackageNotFoundError, version

from limerank.threads import sleep_while_waiting

sleep_while_waiting()  # before torch is loaded, or it has no effect

try:
    __version__ = version("limerank")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0.0.0+source"

__all__ = ["__version__"]
