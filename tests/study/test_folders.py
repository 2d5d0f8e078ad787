"""Where studies work: quick modes apart, one process at a time, and told before any work if nothing can be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import answer, limerank

from limerank.cli.study.common import dataset_for, studying
from limerank.data.sources.simulated import SimulatedConfig, simulate
from limerank.data.store.dataset import StoredDataset
from limerank.errors import ConflictError, UnavailableError, UsageError
from limerank.report.page import Page
from limerank.study.ablation.variants import check_bases
from limerank.study.accuracy.search import found_in
from limerank.study.logs.results import LogsStudy
from limerank.study.results import QUICK, StudyResult, fill_whole, making
from limerank.study.simulated_log import shaped_by_lime


def test_a_quick_study_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """So it never replaces a result, and its small log is never in the way of the real one."""
    with studying("scaling", tmp_path, quick=True) as folder:
        assert folder == tmp_path / "quick"
    with studying("scaling", tmp_path, quick=False) as folder:
        assert folder == tmp_path


def test_two_studies_in_one_folder_are_refused(tmp_path: Path) -> None:
    """Another study may work there, and a quick one beside a real one."""
    with studying("latency", tmp_path, quick=False):
        with (
            pytest.raises(ConflictError, match="another process is studying there"),
            studying("latency", tmp_path, quick=False),
        ):
            pass
        with studying("logs", tmp_path, quick=False), studying("latency", tmp_path, quick=True):
            pass
    with studying("latency", tmp_path, quick=False):
        pass


def test_an_out_that_is_a_file_is_told_before_any_work(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with (
        pytest.raises(UnavailableError, match=r"--out .*taken is a file, not a folder"),
        studying("latency", taken, quick=False),
    ):
        pass
    said = limerank("study", "latency", "--quick", "--out", taken)
    assert said.returncode == 6
    assert "bundles" not in said.stderr, "nothing was begun"


def test_ctrl_c_between_the_steps_says_what_stays(tmp_path: Path) -> None:
    """Words that were said nearer to the work win."""
    with (
        pytest.raises(KeyboardInterrupt, match="the same command goes on"),
        studying("spectrum", tmp_path, quick=False),
    ):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt, match="^nearer$"), studying("spectrum", tmp_path, quick=False):
        raise KeyboardInterrupt("nearer")


def test_a_folder_with_another_log_is_refused(tmp_path: Path) -> None:
    """A study that silently took it would be of a log that nobody asked for."""
    tiny = SimulatedConfig(users=12, items=30, topics=3, sessions=6, slots=4)
    made = dataset_for(None, tmp_path, log=tiny)
    assert dataset_for(None, tmp_path, log=tiny) == made
    assert dataset_for(Path("named"), tmp_path) == Path("named")
    with pytest.raises(UsageError, match="holds another log"):
        dataset_for(None, tmp_path, log=tiny.model_copy(update={"topics": 4}))


def test_rankers_are_compared_on_an_evaluation_log(tmp_path: Path) -> None:
    """The medium one, as it is prepared by its own command: the quickstart's was shaped by LIME's results."""
    made = dataset_for(None, tmp_path / "study")
    assert dataset_for(None, tmp_path / "study") == made
    answer("prepare", "evaluation", "medium", "--out", tmp_path / "medium")
    opened, named = StoredDataset.open(made), StoredDataset.open(tmp_path / "medium")
    assert (opened.fingerprint, opened.manifest.origin) == (named.fingerprint, named.manifest.origin)
    assert shaped_by_lime(opened.manifest.origin) == []


def test_logs_that_limes_results_have_shaped_are_named() -> None:
    (said,) = shaped_by_lime(simulate(SimulatedConfig(users=12, items=3000, topics=3, sessions=6)).origin)
    assert "(12 users, 3,000 items, 3 topics, 6 sessions)" in said
    assert "flatter LIME" in said
    assert shaped_by_lime({"source": "table"}) == []


def test_what_a_study_says_of_the_log_it_drew(tmp_path: Path) -> None:
    """Scaling varies the quickstart's topics, by design."""
    sizes = ("--topics", "4,12", "--links", "4", "--threads", "1", "--out", tmp_path)
    found = answer("study", "scaling", "--quick", "--only", "interests", *sizes)["caveats"]
    assert [said for said in found if "quickstart's strengths (60 users, 200 items, 4 or 12 topics" in said]


def test_a_quick_page_says_so_before_its_figures() -> None:
    with making([1], quick=True) as made:
        result = StudyResult(study="tiny", made=made())
    page = Page("A study")
    fill_whole(page, result, lambda page, _: page.paragraph("NE fell by 3 %"))
    html = page.html()
    assert html.count(QUICK) == 1
    assert html.index(QUICK) < html.index("NE fell by 3 %") < html.index("How this was made")


def test_an_ablation_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="must name what is changed"):
        check_bases([])
    assert check_bases(["lime-mha", "lime-mha"]) == ["lime-mha"]


def test_the_search_of_another_study_is_refused_by_its_name(tmp_path: Path) -> None:
    """Not by a thousand keys that are missing."""
    with making() as made:
        result = LogsStudy(study="logs", made=made(), logs=[])
    path = tmp_path / "logs.json"
    path.write_text(result.model_dump_json())
    with pytest.raises(UsageError, match="is a study of logs; name the accuracy.json"):
        found_in(path, [])
