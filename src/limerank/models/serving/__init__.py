"""User stages for serving: one request, prepared once from a ranker, equal to its `encode_user`, with few calls.

    stage = prepare_user_stage(ranker, item_table)
    state = stage(inputs)            # inputs.history.items is item_table: events are named by rows of it

Nothing here keeps gradients, and nothing here is a second definition: what a prepared stage computes is derived from
the ranker's weights and tested against `encode_user` for every ranker and option.
"""

from limerank.models.serving.events import EventTable
from limerank.models.serving.stage import UserStage, prepare_user_stage

__all__ = ["EventTable", "UserStage", "prepare_user_stage"]
