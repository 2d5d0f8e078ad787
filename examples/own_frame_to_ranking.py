"""Your own frame to a ranking: a log in memory, a schema, a dataset, a trained ranker, a store, rankings.

Run it (`python examples/own_frame_to_ranking.py [FOLDER]`, about ten seconds), or open it in an editor that knows
`# %%` cells and run it cell by cell. It writes below FOLDER only, or into a temporary folder.
"""

# %% A log. Yours comes from a warehouse; this one is made up, with a taste in it that a ranker can find.
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

import limerank as lr

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="limerank-example-"))
GENRES = ["comedy", "crime", "drama", "horror", "romance", "space"]
USERS, FILMS, DAYS, SHOWN = 250, 120, 14, 6

draw = np.random.default_rng(1)
genre = draw.integers(len(GENRES), size=FILMS)
films = pl.DataFrame(
    {
        "film": [f"f{film}" for film in range(FILMS)],
        "title": [f"{GENRES[one].title()} No. {film}" for film, one in enumerate(genre)],
        "genre": [GENRES[one] for one in genre],
        "minutes": draw.normal(105, 15, FILMS).round(),
    }
)

# Everybody likes two genres. Each evening six films are shown; a film of a genre one likes is finished three times in
# four, another one time in five. Nothing in the tables says who likes what: it can only be read from the history.
likes = np.array([draw.choice(len(GENRES), 2, replace=False) for _ in range(USERS)])
rows = []
for day in range(DAYS):
    for user in range(USERS):
        time = datetime(2026, 1, 1, 20) + timedelta(days=day, minutes=int(draw.integers(120)))
        device = str(draw.choice(["tv", "phone"]))
        for film in draw.choice(FILMS, SHOWN, replace=False):
            chance = 0.75 if genre[film] in likes[user] else 0.2
            rows.append((f"u{user} day {day}", f"u{user}", f"f{film}", time, device, int(draw.random() < chance)))
events = pl.DataFrame(rows, schema=["evening", "user", "film", "time", "device", "finished"], orient="row")
print(events.head(3))

# %% What the columns mean. The role of a feature decides where it may go, so that nothing leaks: `finished` is what
# is to be predicted, and as a feature it is of the role `event`, visible in the history only, never with the
# candidate itself.
schema = lr.Schema(
    user_id="user",
    item_id="film",
    time="time",  # a date-time column; numbers need time_unit
    request_id="evening",  # what was shown together
    features=(
        lr.Feature(name="film", role=lr.Role.ITEM),
        lr.Feature(name="genre", role=lr.Role.ITEM),
        lr.Feature(name="minutes", role=lr.Role.ITEM, kind=lr.Kind.CONTINUOUS),
        lr.Feature(name="was_finished", role=lr.Role.EVENT, column="finished"),
        lr.Feature(name="device", role=lr.Role.CONTEXT),
    ),
    tasks=(lr.Task(name="finished"),),
    split=lr.GlobalTime(validation_fraction=0.1, test_fraction=0.15),
    display="title",  # shown beside ids, never a feature
)

# %% Check, split and encode it: the last evenings are the test part, those before them validation.
data = lr.Dataset.build(events, items=films, schema=schema, out=FOLDER / "dataset", overwrite=True)
print(data)

# %% Look before training: PASS, WARN and FAIL for what usually goes wrong. In a notebook `data.describe()` is enough.
description = data.describe()
print(description)
assert description.worst != "FAIL"

# %% Train LIME-MHA. Its options are typed: an editor completes them, and a misspelled one is an error that names the
# right one.
run = lr.train(lr.LimeMHA(links=8), data, out=FOLDER / "run", epochs=3, batch_requests=16, seed=1, overwrite=True)
print(run.history.select("epoch", "train_loss", "auc", "ne"))  # of the validation part, which chose the epoch

# %% How good is it? Beside it stands the counting floor: rates of films and users, without any history. Here it knows
# nothing of taste, since every user likes as many genres as the next, so what lies between the two is what the
# history is worth.
print(run.evaluation)
print("AUC on the test part:", run.metrics["test"]["finished"].auc)

# %% Score new rows: raw values as in the log, without labels. The history is what the dataset holds before their
# time. A film that is new is described by `items`, or by columns of the rows.
tomorrow = datetime(2026, 1, 1, 21) + timedelta(days=DAYS)
asked = pl.DataFrame({"user": "u7", "film": ["f0", "f1", "f2", "premiere"], "time": tomorrow, "device": "tv"})
premiere = pl.DataFrame({"film": ["premiere"], "title": ["Out There"], "genre": ["space"], "minutes": [100.0]})
print(run.predict(asked, items=premiere))

# %% Compute the item side once, publish it as a verified bundle, and rank the whole catalog with it.
run.export(FOLDER / "store")
engine = lr.Engine.open(FOLDER / "store")
print("u7 likes", [GENRES[one] for one in likes[7]])
print(engine.rank("u7", limit=5, context={"device": "tv"}))

# %% What happened since the export comes with the request. Somebody new was shown six films and finished those in
# space; the three that were left say as much as the three that were finished.
space = films.filter(genre="space")["film"][:3].to_list()
left = films.filter(genre="drama")["film"][:3].to_list()
evening = [lr.Event(film, {"was_finished": int(film in space)}) for film in space + left]
print(engine.rank("somebody new", limit=5, events=evening, exclude_seen=True))

# %% Many users at once: one frame, to write to a table.
print(engine.rank_many([f"u{user}" for user in range(3)], limit=2, exclude_seen=True))

# %% A new day is appended without rebuilding; the run stays valid, and a new export ranks with the longer histories.
today = pl.DataFrame(
    {"evening": "u7 premiere", "user": "u7", "film": ["f5", "f9"], "time": tomorrow, "device": "tv", "finished": [1, 0]}
)
data = data.append(today)
print(data)
print(f"everything is in {FOLDER}")
