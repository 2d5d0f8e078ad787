"""Compare three rankers on the same data: two towers, LIME, and the attention that LIME approximates.

Run it (`python examples/compare_three_rankers.py [FOLDER]`, about ten seconds), or open it in an editor that knows
`# %%` cells and run it cell by cell. It writes below FOLDER only, or into a temporary folder.
"""

# %% Data whose true click probabilities are known. It is small, and its sizes were chosen so that differences show
# after seconds of training: it teaches how to compare, it is evidence for nothing.
import sys
import tempfile
from pathlib import Path

import polars as pl

import limerank as lr

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="limerank-example-"))
SIZES = lr.SimulatedConfig(users=300, items=200, topics=6, sessions=10, slots=8)
data = lr.Dataset.build(lr.simulate(SIZES), out=FOLDER / "dataset", overwrite=True)
print(data)

# %% Three rankers, from the same seed, with the same sizes, data, epochs and learning rate. Give one of them more of
# anything (options, epochs, a search) and the others must get it too.
rankers = {
    "ttsn": lr.TTSN(),  # two towers: the history is pooled before any candidate is known
    "lime-mha": lr.LimeMHA(links=16),  # candidates read the history through 16 links
    "mha": lr.MHA(),  # every candidate attends to the whole history: the skyline, at a cost that grows with it
}
runs = {
    name: lr.train(ranker, data, out=FOLDER / name, epochs=3, batch_requests=16, seed=1, overwrite=True)
    for name, ranker in rankers.items()
}

# %% One table. The counting floor (smoothed rates of items and users) is what any ranker should beat; the oracle
# scores the true probabilities, so nobody can beat it but by luck. For NE (logloss over the entropy of the base rate)
# lower is better.
TASK = "click"
evaluation = runs["ttsn"].evaluation
measured = {
    "counting floor": evaluation.floor[TASK],
    **{name: run.metrics["test"][TASK] for name, run in runs.items()},
    "oracle": evaluation.oracle[TASK],
}
table = pl.DataFrame(
    [{"ranker": name, "auc": one.auc, "gauc": one.gauc, "ne": one.ne} for name, one in measured.items()]
)
print(table)

# %% Were they trained long enough? If validation NE still falls in the last epoch, the table compares how fast they
# learn.
epochs = pl.concat(
    [run.history.filter(task=TASK).select(pl.lit(name).alias("ranker"), "epoch", "ne") for name, run in runs.items()]
)
print(epochs.pivot("epoch", index="ranker", values="ne"))

# %% What may be concluded: that the walk works, which ranker to look at next, and that one far below the floor is not
# trained yet.
#
# What may not: that the ranker with the better number is better. This is one seed, one small log and one set of
# options. Another seed moves every number, and with it the order of those that are close. Nor does accuracy say what a
# request costs.
#
# Before you conclude anything, repeat with several seeds and look at the spread, and measure the time:
#
#     limerank study accuracy --models ttsn,lime-mha,mha --seeds 3 --dataset DATASET --out studies/accuracy
#     limerank study latency --models ttsn,lime-mha,mha --out studies/latency
#
# and select on validation, never on test: the test part is for the last look.
print(f"everything is in {FOLDER}")
