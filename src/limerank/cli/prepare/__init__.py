"""`limerank prepare`: one file per source; each joins the group when it is imported."""

from limerank.cli.prepare import evaluation, fuxictr, kuairand, movielens, simulated, table, taobao
from limerank.cli.prepare.common import prepare_app

SOURCES = (simulated, evaluation, table, movielens, kuairand, taobao, fuxictr)

__all__ = ["SOURCES", "prepare_app"]
