"""What words in the names of columns usually mean. They are hints; the values decide where they can."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


USER_NOUNS = _words("account client customer member person reviewer u user viewer visitor")
ITEM_NOUNS = _words(
    "ad adgroup article asin book business content doc document game goods i isbn item listing movie news photo post "
    "product recipe sku song track video"
)
REQUEST_WORDS = _words("impression page query req request rid search session slate")
TIME_NAMES = _words("datetime time timestamp ts")
TIME_WORDS = TIME_NAMES | _words("at created date epoch moment unixtime when")
RATING_WORDS = _words("grade overall rating score star stars vote")
OUTCOME_WORDS = _words(
    "action bought btag buy cart click clicked clicks comment comments complete completed completion conversion "
    "converted dislike disliked dwell enter feedback finish finished follow followed forward hate hated label like "
    "liked order ordered play played playtime purchase purchased rated rating reward share shared skip skipped stars "
    "stay target view viewed watch watched watchtime"
)
CONTEXT_WORDS = _words(
    "app browser channel city connection country device hour hourmin language network os page pid platform query "
    "region scenario screen slot tab weekday"
)
LABEL_ORDER = (
    _words("click clicked clk"),
    _words("label target"),
    _words("bought buy conversion converted order ordered purchase purchased"),
    _words("like liked"),
    _words("play played view viewed watch watched"),
)
DISPLAY_ORDER = (_words("headline title"), _words("name"), _words("caption subject"))
MODEL_WORDS = _words("ctr cvr logit pctr pcvr predicted prediction prob probability propensity")
AMOUNT_WORDS = _words(
    "age amount cnt cost count counts days distance duration fraction height len length lifetime millis minutes ms num "
    "number percent price quantity rank rate ratio score sec seconds size time times weight width year years"
)
