"""User states kept between requests: read once, appended to, and thrown away when they no longer hold."""

from limerank.serve.states.cache import UserStates
from limerank.serve.states.counts import StateCounts
from limerank.serve.states.entry import Found, How
from limerank.serve.states.shared import SharedStates, shared_states_of
from limerank.serve.states.source import UserSource

__all__ = ["Found", "How", "SharedStates", "StateCounts", "UserSource", "UserStates", "shared_states_of"]
