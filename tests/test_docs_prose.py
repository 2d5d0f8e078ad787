"""What the prose of README and evidence says of the results is what docs/results has; tables have their own test."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def words(page: str) -> str:
    """A page in one line."""
    return " ".join((ROOT / page).read_text().split())


EVIDENCE, README = words("docs/explanation/evidence.md"), words("README.md")


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module("study_tables")


class Log:
    """What was measured on one log, as the pages write it."""

    def __init__(self, name: str) -> None:
        self.study: dict[str, Any] = json.loads((ROOT / f"docs/results/accuracy-{name}.json").read_text())
        self.rows = {row["name"]: row for row in self.study["rows"]}

    def ne(self, row: str, spread: bool = False) -> str:
        found = self.rows[row]["metrics"]["ne"]
        return f"{found['mean']:.4f}" + (f"±{found['deviation']:.4f}" if spread else "")

    def seeds(self, row: str) -> list[float]:
        return [run["test"][self.study["task"]]["ne"] for run in self.rows[row]["runs"]]

    def closed(self, row: str) -> str:
        return percent(self.rows[row]["gap"]["of_means"])

    def between(self, row: str) -> str:
        gap = self.rows[row]["gap"]
        return f"{percent(gap['low'])} to {percent(gap['high'])}"

    def is_clear(self, first: str, second: str, metric: str) -> bool:
        """Whether the interval of a difference leaves out zero."""
        compared = next(
            one["metrics"][metric]
            for one in (*self.study["comparisons"], *self.study.get("rivals", ()))
            if (one["first"], one["second"]) == (first, second)
        )
        return not compared["low"] <= 0 <= compared["high"]

    def mean(self, row: str) -> float:
        return float(self.rows[row]["metrics"]["ne"]["mean"])

    def gap(self, row: str, skyline: str) -> float:
        return self.mean(row) - self.mean(skyline)


def percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def claimed(text: str, *sentences: str) -> None:
    missing = [one for one in sentences if one not in text]
    assert not missing, "\n".join(missing)


def test_accuracy_on_simulated_logs() -> None:
    easy, medium, hard = Log("easy"), Log("medium"), Log("hard")
    first, second, third = easy.seeds("lime-xor")
    floor = easy.study["floor"]["ne"]
    claimed(
        EVIDENCE,
        f"it closes {easy.closed('lime-mha')} of the gap ({easy.between('lime-mha')}: neither nothing nor all)",
        f"LIME-XOR closes {easy.closed('lime-xor')} of the gap to HSTU",
        f"two of its seeds train ({first:.3f} and {second:.3f}), the third hardly does ({third:.3f})",
        f"hardly does ({third:.4f}, counting {floor:.4f})",
        f"Performer is level with it ({easy.closed('performer')})",
        f"closes as much as links do ({easy.closed('truncated-mha')})",
        f"LIME-MHA closes {medium.closed('lime-mha')}** of a gap of {medium.gap('ttsn', 'mha'):.3f}",
        f"(Xavier: {medium.ne('lime-mha-xavier')} and {medium.ne('mha-xavier')})",
        f"Performer ({medium.closed('performer')}) and truncation ({medium.closed('truncated-mha')})",
        f"({medium.closed('linear-attention-128')}, {medium.closed('lightning-128')} and {medium.closed('lrea-128')})",
        f"hardly better than TTSN ({medium.ne('hstu-closed')})",
        f"two of its three seeds train ({medium.ne('hstu', spread=True)}), and LIME-XOR closes "
        f"{medium.closed('lime-xor')} of that gap",
        f"HSTU is the best of all ({medium.ne('hstu-softmax', spread=True)}) on average; the interval of its "
        "difference to SiLU holds zero",
        f"TTSN to MHA is no gap ({hard.gap('ttsn', 'mha'):.4f})",
    )
    claimed(README, f"with softmax instead of SiLU it reaches {medium.ne('hstu-softmax')}")


def test_what_intervals_tell_of_sasrec_and_of_starts() -> None:
    """Who is only ahead on average is said to be; who is told apart, too."""
    logs = {name: Log(name) for name in ("easy", "medium", "hard", "ml-100k", "kuairand-likehate")}
    assert not any(log.is_clear("sasrec", "mha", "ne") for log in logs.values())
    for name, log in logs.items():
        better = all(log.gap("sasrec", other) < 0 for other in ("mha", "lime-mha", "lime-xor"))
        assert better is (name != "hard"), name
    assert all(logs["ml-100k"].gap("sasrec", skyline) < 0 for skyline in ("mha", "hstu"))
    assert [name for name, log in logs.items() if log.gap("hstu", "mha") < 0] == [
        "easy",
        "ml-100k",
        "kuairand-likehate",
    ]
    seeds = zip(logs["ml-100k"].seeds("hstu"), logs["ml-100k"].seeds("mha"), strict=True)
    assert sum(hstu < mha for hstu, mha in seeds) == 2
    medium = logs["medium"]
    told = {
        (row, metric): medium.is_clear(f"{row}-xavier", row, metric)
        for row in ("mha", "lime-mha")
        for metric in ("ne", "gauc")
    }
    assert [at for at, clear in told.items() if clear] == [("mha", "ne"), ("lime-mha", "gauc")]
    assert not medium.is_clear("hstu-softmax", "hstu", "ne")
    claimed(
        EVIDENCE,
        "SASRec is ahead of both skylines on average: against MHA the interval of NE holds zero",
        "HSTU is ahead of MHA on average on easy and on both real logs, of ml-100k in two of three seeds",
        "For MHA that is clear in NE and cannot be told in gAUC; for LIME-MHA it cannot be told in NE and is clear in "
        "gAUC",
        "is on average better than both LIME rankers and than MHA on every log but hard",
        "Against MHA the interval of NE holds zero on all five logs, and these files have none against LIME",
    )
    claimed(README, "SASRec, whose candidates attend too, is on average ahead of LIME on four of the five logs")
    lime = {"lime-mha", "lime-xor"}
    for log in logs.values():
        pairs = [{one["first"], one["second"]} for one in (*log.study["comparisons"], *log.study.get("rivals", ()))]
        assert not any("sasrec" in pair and pair & lime for pair in pairs), "there are intervals now: tell them"


def test_what_twice_the_epochs_bring() -> None:
    """What is told of means, intervals and seeds of the logs that were trained on twice as long."""
    logs = {name: (Log(name), Log(f"{name}-longer")) for name in ("easy", "medium", "ml-100k", "kuairand-likehate")}
    rows = logs["easy"][1].rows
    change = {
        name: {row: longer.mean(row) - shorter.mean(row) for row in rows} for name, (shorter, longer) in logs.items()
    }
    far = {(name, row) for name in ("easy", "medium") for row in rows if abs(change[name][row]) >= 0.01}
    assert far == {("easy", "din")}
    assert max(map(abs, change["ml-100k"].values())) < 0.002
    kuai = change["kuairand-likehate"]
    assert [row for row in rows if kuai[row] <= 0] == ["hstu"]
    assert max(kuai, key=kuai.__getitem__) == "din"
    easy, medium, ml = (logs[name][1] for name in ("easy", "medium", "ml-100k"))
    assert min(rows, key=lambda row: float(easy.ne(row))) == "din"
    epochs = [run["best_epoch"] for log in (easy, medium) for row in log.rows.values() for run in row["runs"]]
    assert sum(2 <= epoch <= 7 for epoch in epochs) > 0.9 * len(epochs)
    claimed(
        EVIDENCE,
        f"all of whose seeds train now ({easy.ne('din', spread=True)}, the best there)",
        f"LIME-MHA closes {easy.closed('lime-mha')} of the gap on easy ({easy.between('lime-mha')}), where it was "
        f"{logs['easy'][0].closed('lime-mha')}",
        f"Of LIME-XOR on easy another seed hardly trains ({max(easy.seeds('lime-xor')):.4f})",
        f"stays at the floor ({max(medium.seeds('hstu')):.4f})",
        f"LIME-MHA closes {ml.closed('lime-mha')} ({ml.between('lime-mha')}) of its gap and LIME-XOR "
        f"{ml.closed('lime-xor')} ({ml.between('lime-xor')}) of its own",
        f"DIN most (by {kuai['din']:.3f})",
    )
    assert [row for row in rows if row != "ttsn" and not ml.is_clear(row, "ttsn", "ne")] == ["din"]
    assert not any(ml.is_clear(*pair, "ne") for pair in (("lime-mha", "mha"), ("lime-xor", "hstu")))
    assert all(ml.is_clear(lime, "truncated-mha", "gauc") for lime in ("lime-mha", "lime-xor"))
    worse = logs["kuairand-likehate"][1]
    assert [row for row in rows if row != "ttsn" and worse.is_clear(row, "ttsn", "ne")] == ["lrea"]
    for log in (ml, worse):
        assert not any(log.is_clear(row, "ttsn", "gauc") for row in rows if row != "ttsn")


def test_what_a_larger_log_is_worth() -> None:
    """The medium log with more users: what LIME closes, whom it is told apart from, and the order of the paper."""
    medium, four, sixteen = (Log(f"medium{end}") for end in ("", "-4x", "-16x"))
    of_mha, of_hstu = (
        {log: f"{log.closed(row)} ({log.between(row)})" for log in (four, sixteen)} for row in ("lime-mha", "lime-xor")
    )
    din = [f"{ne:.4f}" for ne in sixteen.seeds("din")]
    claimed(
        EVIDENCE,
        f"LIME-MHA closes {of_mha[four].replace(' (', ' of the gap to MHA (')} where it closed "
        f"{medium.closed('lime-mha')}, with sixteen times {of_mha[sixteen]}",
        f"LIME-XOR closes {of_hstu[four]} and {of_hstu[sixteen]} of the gap to HSTU",
        f"({din[0]} and {din[1]}; the third stays at {din[2]})",
    )
    for log in (four, sixteen):
        assert not any(log.is_clear("lime-mha", "mha", metric) for metric in ("ne", "gauc"))
        assert log.is_clear("lime-xor", "hstu", "ne")
        assert log.gap("lime-xor", "hstu") > 0
        assert all(log.is_clear("lime-mha", "sasrec", metric) for metric in ("ne", "gauc"))
        assert log.gap("lime-mha", "sasrec") > 0
        assert log.gap("sasrec", "hstu") > 0 or log is four
    for log, row in ((four, "lime-mha"), (sixteen, "lime-mha"), (sixteen, "lime-xor")):
        for other in ("truncated-mha", "lrea"):
            assert all(log.is_clear(row, other, metric) for metric in ("ne", "gauc"))
            assert log.gap(row, other) < 0
    assert sixteen.is_clear("lime-xor", "mha", "ne")
    assert sixteen.gap("lime-xor", "mha") < 0
    assert abs(sixteen.gap("sasrec", "hstu")) < 0.001
    assert four.gap("din", "lime-mha") < 0
    backwards = ("ttsn", "lrea", "truncated-mha", "mha", "lime-mha", "lime-xor", "hstu")
    assert [float(sixteen.ne(row)) for row in backwards] == sorted(float(sixteen.ne(row)) for row in backwards)[::-1]
    claimed(
        README,
        f"Where it keeps {medium.closed('lime-mha')}, it keeps {four.closed('lime-mha')} with four times the users and "
        f"{sixteen.closed('lime-mha')} with sixteen times",
        f"the name; {sixteen.closed('lime-xor')} on the largest",
    )


def test_which_files_can_be_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    results = import_module("results")
    monkeypatch.delenv("DATA", raising=False)
    monkeypatch.setattr(results, "ROOT", ROOT / "nowhere")
    elsewhere = [name for name, made in results.MADE.items() if isinstance(made, results.Elsewhere)]
    assert (len(elsewhere), len(results.EARLIER)) == (8, 7)
    needing = [name for name in results.MADE if results.lacking(name) is not None]
    of_real_logs = [f"accuracy-{log}{end}" for end in ("", "-longer") for log in ("ml-100k", "kuairand-likehate")]
    assert needing == ["logs", *of_real_logs]
    claimed(EVIDENCE, "Not made again are eight: seven", "What reads logs that cannot be part of the repository")


def test_logs_that_results_of_lime_shaped() -> None:
    """The committed files of both studies are of before pages told; once they tell, the how-to need not."""
    how_to = words("docs/how-to/study-spectrum-and-scaling.md")
    for name in ("spectrum", "scaling"):
        caveats = json.loads((ROOT / f"docs/results/{name}.json").read_text())["caveats"]
        told = any("shaped by looking at" in one for one in caveats)
        assert told is not (f"(not one of the committed [file](../results/{name}.json)" in how_to), name
        section = EVIDENCE.split(f"## {name.capitalize()} ")[1].split(" ## ")[0]
        assert "like the quickstart's, which was shaped by looking at results of LIME" in section, name


def test_accuracy_on_real_logs() -> None:
    ml, kuai = Log("ml-100k"), Log("kuairand-likehate")
    order = ("hstu", "HSTU"), ("mha", "MHA"), ("lime-mha", "LIME-MHA"), ("lime-xor", "LIME-XOR"), ("ttsn", "TTSN")
    claimed(
        EVIDENCE,
        f"LIME-MHA closes {ml.closed('lime-mha')} of the gap to MHA ({ml.between('lime-mha')}: perhaps all), LIME-XOR "
        f"{ml.closed('lime-xor')} of that to HSTU ({ml.between('lime-xor')}: less than all)",
        f"TWIN ({ml.closed('twin')}), LREA ({ml.closed('lrea')}) and truncation ({ml.closed('truncated-mha')})",
        ", ".join(f"{name} {kuai.ne(row)}" for row, name in order),
        f"and the {kuai.closed('lime-mha')} and {kuai.closed('lime-xor')} are of gaps",
    )
    assert [float(kuai.ne(row)) for row, _ in order] == sorted(float(kuai.ne(row)) for row, _ in order)


def test_seeds_that_stay_at_the_floor() -> None:
    """Those that are named are those that there are: at the floor, of a ranker that trains from another seed."""
    found = set()
    for name in ("easy", "medium"):
        log = Log(name)
        floor = log.study["floor"]["ne"]
        for row in log.rows:
            seeds = log.seeds(row)
            if not row.count("-xavier") and max(seeds) > floor - 0.002 and min(seeds) < floor - 0.02:
                found.add((name, row))
    assert found == {("medium", "hstu"), ("medium", "truncated-mha"), ("easy", "din"), ("easy", "lightning")}
    assert "one of three of HSTU and of truncated MHA on medium, of DIN and of Lightning on easy" in EVIDENCE


def test_sharpness_on_real_logs() -> None:
    """What trials of LIME gained by 1 instead of 3."""
    gained = {}
    for name in ("ml-100k", "kuairand-likehate", "easy"):
        for row in ("lime-mha", "lime-xor"):
            trials = Log(name).study["search"]["rows"][row]["trials"]
            by = {json.dumps(trial["parameters"]): trial["validation_ne"] for trial in trials}
            gained[name, row] = by["{}"] - by['{"model.sharpness": 1.0}']
    real = [value for (name, _), value in gained.items() if name != "easy"]
    assert 0.0015 < min(real) < max(real) < 0.0055
    assert "by little (0.002 to 0.005 of the validation NE of LIME)" in EVIDENCE
    by_far = f"({-gained['easy', 'lime-mha']:.3f} and {-gained['easy', 'lime-xor']:.3f})"
    assert f"by far the better one on easy {by_far}" in EVIDENCE


def test_latency(tables: ModuleType) -> None:
    study, other = tables.known("latency"), tables.known("latency-second-machine")
    ratios = {key(one): one for one in study["ratios"] if one["head"]}
    growth = {(one["model"], one["what"], one["along"], one["threads"]): one for one in study["growth"]}
    cached = (
        ratios["history", "lime-mha", "cached", "computed", 2],
        ratios["history", "lime-mha", "cached", "cached", 2],
    )
    xor = ratios["history", "lime-xor", "cached", "cached", 2], ratios["history", "lime-xor", "cached", "computed", 2]
    interact = [growth["lime-mha", "interact", "N", threads]["exponent"] for threads in (1, 2)]
    steps = [growth["hstu", "total", "N", threads]["last_step"] for threads in (1, 2)]
    reached = [sum(goal["reached"] for goal in one["goals"]) for one in (study, other)]
    goals = [len(one["goals"]) for one in (study, other)]
    parts = sorted(one["ratio"] / ratios[key(one)]["ratio"] for one in other["ratios"] if one["head"])
    claimed(
        EVIDENCE,
        f"({cached[0]['ratio']:.0f}x and {cached[1]['ratio']:.0f}x)",
        f"cached LIME-XOR is {xor[0]['ratio']:,.0f}x a cached HSTU. The {xor[1]['ratio']:,.0f}x are",
        f"(exponents {interact[0]:.2f} and {interact[1]:.2f}, where at most 0.05 was wanted)",
        f"the exponent is {steps[0]:.2f} on one thread and {steps[1]:.2f} on two",
        f"{reached[0]} of {goals[0]} on this one, {reached[1]} of {goals[1]} on another",
        f"ratios are between {parts[0]:.2f} and {parts[-1]:.2f} of those here",
    )
    longest = max(row["history"] for row in study["rows"])
    gained = [tables.gains(study, model) for model in study["models"]]
    assert all(gain > 1 for own in gained for (*_, history, _), gain in own.items() if history == longest)
    claimed(EVIDENCE, "behind the longest history every ranker gains")
    claimed(README, f"between {parts[0]:.2f} and {parts[-1]:.2f} of what the first one had")


def key(ratio: dict[str, Any]) -> tuple[str, str, str, str, int]:
    return ratio["sweep"], ratio["lime"], ratio["lime_state"], ratio["skyline_state"], ratio["threads"]


def test_spectrum_and_ablation(tables: ModuleType) -> None:
    spectrum, ablation = tables.known("spectrum"), tables.known("ablation")
    held = {}
    for one in spectrum["spectra"]:
        if one["source"] == "trained HSTU":
            for definition, energy in one["energies"].items():
                held[one["matrix"], definition] = energy["at_rank"]["32"]["mean"]
    inside = {name: 100 * spectrum["captured"][name]["mean"] for name in ("links", "best", "random")}
    claimed(
        EVIDENCE,
        f"32 directions hold {percent(held['self-attention', 'frobenius'])} of self-attention and all of",
        f"for self-attention, {percent(held['self-attention', 'nuclear'])}; of cross-attention they hold "
        f"{percent(held['cross-attention', 'nuclear'])}",
        f"lie {inside['links']:.0f} % of the squared norm",
        f"directions hold {inside['best']:.1f} % and random ones {inside['random']:.1f} %",
    )
    compared = {one["name"]: one["ne"]["mean"] for one in ablation["compared"]}
    claimed(EVIDENCE, f"it loses {compared['coupled keys (pma)']:.3f}, most of the gap to TTSN")


def test_training_by_two_processes() -> None:
    """The how-to's table is that of the cluster's figures, and its sentence holds."""
    page = (ROOT / "docs/how-to/train-on-many-machines.md").read_text()
    alone, *several = json.loads((ROOT / "docs/results/bench-cluster.json").read_text())["training"]
    assert alone["processes"] == 1
    for one in (alone, *several):
        times = one["rows_per_second"] / alone["rows_per_second"]
        tables = {"replicated": "whole", "torchrec": "TorchRec"}[one["embeddings"]]
        rate, efficiency = f"{one['rows_per_second']:,.0f}", f"{one['efficiency']:.2f}"
        claimed(page, f"| {one['processes']} | {tables} | {rate} | {times:.2f} | {efficiency} |")
    claimed(page, "two processes were slower than one")
    assert {one["processes"] for one in several} == {2}
    assert all(one["rows_per_second"] < alone["rows_per_second"] for one in several)
