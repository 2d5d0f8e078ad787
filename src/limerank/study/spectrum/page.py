"""The page of `study spectrum`."""

from __future__ import annotations

from collections.abc import Sequence

from limerank.report.charts import Points, line_chart
from limerank.report.page import Chart, Page
from limerank.study.spectrum import paper
from limerank.study.spectrum.energy import Definition
from limerank.study.spectrum.results import (
    CROSS,
    PERSONALIZED,
    PRODUCT,
    RANDOM_HEADS,
    RANDOM_SCORES,
    RAW_LINKS,
    SELF,
    TRAINED,
    UNTRAINED,
    Spectrum,
    SpectrumStudy,
    Spread,
    TrainedRanker,
)

SIGMA = "\N{GREEK SMALL LETTER SIGMA}"
TITLE = "How many directions attention has"
SYMBOLS: dict[Definition, str] = {"nuclear": SIGMA, "frobenius": f"{SIGMA}²"}
SOURCES = (TRAINED, UNTRAINED, RANDOM_HEADS, RANDOM_SCORES)
SHORT = {RAW_LINKS: "L", PERSONALIZED: "L^P", PRODUCT: "product"}
TABLE_INDICES = (1, 2, 4, 8, 16, 32, 64)


def fill(page: Page, result: SpectrumStudy) -> None:
    """Findings, charts, tables, method."""
    page.paragraph(_finding(result), "lead")
    page.paragraph(
        f"Singular values of the attention matrices of a trained HSTU skyline (dataset '{result.dataset}'; "
        f"{result.pairs} pairs of a sequence of {result.history:,} events and {result.candidates:,} candidates, of "
        f"{result.users} users; every layer and head), and of the links of a trained LIME-XOR with l = {result.links}."
    )
    page.charts([_attention_chart(result), _links_chart(result)])
    page.heading("What energy means")
    page.paragraph(
        f"Energy is defined in two ways, and the paper does not say which it draws. {SIGMA}: the sum of the first k "
        f"singular values over the sum of all, which its axis suggests. {SIGMA}²: the same with squares, which is the "
        "part of the matrix that the best approximation of rank k keeps. The second is never the smaller one. "
        "Each matrix is normalized for itself, then curves are averaged."
    )
    page.paragraph(
        "The paper's curves are drawn as they stand in its figure: they end at 1.015 and 1.02, which a normalized sum "
        f"cannot, and its line stands at {paper.LINE_DRAWN_AT} where its text says {paper.LINKS}."
    )
    _ranks(page, result)
    _heads(page, result)
    _captured(page, result)
    _links(page, result)
    _by_links(page, result)
    _rankers(page, result)


def _finding(result: SpectrumStudy) -> str:
    parts = []
    for matrix in (SELF, CROSS):
        energies = result.of(TRAINED, matrix).energies
        both = ", ".join(f"{energies[d].at_rank[result.links].mean:.1%} ({SYMBOLS[d]})" for d in SYMBOLS)
        parts.append(f"{both} of {matrix}")
    random = result.of(RANDOM_HEADS, CROSS).energies["frobenius"].at_rank[result.links].mean
    return (
        f"The largest {result.links} singular values hold {' and '.join(parts)}; the paper says more than 90 %. "
        f"Random queries and keys would show {random:.1%} ({SIGMA}²) of cross-attention."
    )


def curve(spectrum: Spectrum, definition: Definition) -> Points:
    """The points of a mean curve."""
    return list(zip(map(float, spectrum.indices), spectrum.energies[definition].mean, strict=True))


def _attention_chart(result: SpectrumStudy) -> Chart:
    series = {
        f"{matrix}, {symbol}": curve(result.of(TRAINED, matrix), definition)
        for definition, symbol in SYMBOLS.items()
        for matrix in (SELF, CROSS)
    }
    references: dict[str, Points] = {
        "paper: self-attention": _up_to(paper.SELF_ATTENTION, result.history),
        "paper: cross-attention": _up_to(paper.CROSS_ATTENTION, result.history),
        f"l = {result.links}": [(result.links, 0.0), (result.links, 1.0)],
    }
    svg = line_chart(series, x="singular value", y="cumulative energy", references=references)
    caption = "Attention matrices of the trained HSTU, mean over layers, heads and pairs."
    return Chart(svg, caption, *_curves([result.of(TRAINED, SELF), result.of(TRAINED, CROSS)]))


def _up_to(points: Points, most: int) -> Points:
    """The paper's sequences are longer than ours may be: its curve ends where ours do."""
    return [point for point in points if point[0] <= most]


def _links_chart(result: SpectrumStudy) -> Chart:
    spectra = _link_spectra(result)
    series = {
        name: curve(spectrum, "nuclear") for name, spectrum in zip(("L", "L^P", "random L"), spectra, strict=True)
    }
    references: dict[str, Points] = {"paper: L": paper.LINK_EMBEDDINGS, "paper: L^P": paper.PERSONALIZED_LINKS}
    svg = line_chart(series, x="singular value", y=f"cumulative energy, {SIGMA}", references=references)
    caption = "Links of the trained LIME-XOR; random links are what it started from."
    return Chart(svg, caption, *_curves(spectra))


def _link_spectra(result: SpectrumStudy) -> list[Spectrum]:
    return [
        result.of("lime-xor", RAW_LINKS),
        result.of("lime-xor", PERSONALIZED),
        result.of(RANDOM_SCORES, RAW_LINKS),
    ]


def _curves(spectra: Sequence[Spectrum]) -> tuple[list[str], list[list[str]]]:
    """The table behind a chart, at a few indices."""
    columns = ["k", *(f"{s.source}, {s.matrix}, {symbol}" for s in spectra for symbol in SYMBOLS.values())]
    indices = [k for k in spectra[0].indices if k in TABLE_INDICES or k == spectra[0].indices[-1]]
    indices += [k for k in spectra[0].indices[64::4] if k not in indices]
    rows = []
    for k in sorted(indices):
        position = spectra[0].indices.index(k)
        rows.append([str(k), *(f"{s.energies[d].mean[position]:.4f}" for s in spectra for d in SYMBOLS)])
    return columns, rows


def _ranks(page: Page, result: SpectrumStudy) -> None:
    page.heading(f"Rank and energy, against l = {result.links}")
    rows = []
    for matrix in (SELF, CROSS):
        for source in SOURCES:
            rows.append([f"{matrix}, {source}", *_row(result.of(source, matrix), result.links)])
        drawn = paper.drawn_at(paper.SELF_ATTENTION if matrix == SELF else paper.CROSS_ATTENTION, result.links)
        rows.append([f"{matrix}, paper as drawn", f"{drawn:.2f} (which?)", "", "", "", "", ""])
    product = result.of("lime-mha", PRODUCT)
    rows.append([f"{PRODUCT}, lime-mha", *_row(product, result.links)])
    page.table(_columns(result.links), rows)
    page.paragraph(
        "Mean ± standard deviation over matrices. The controls have the same shape, mask, activation and divisor. "
        "Random queries and keys: normal vectors of the width of a head. Random scores: independent normal numbers. "
        "What the trained ranker shows beyond them is learned; what they show as well is not."
    )


def _columns(links: int) -> list[str]:
    return [
        "",
        f"{SIGMA} at {links}",
        f"{SIGMA}² at {links}",
        f"90 % of {SIGMA}",
        f"90 % of {SIGMA}²",
        "effective rank",
        "matrices",
    ]


def _row(spectrum: Spectrum, links: int) -> list[str]:
    nuclear, frobenius = spectrum.energies["nuclear"], spectrum.energies["frobenius"]
    return [
        _said(nuclear.at_rank[links], 3),
        _said(frobenius.at_rank[links], 3),
        _said(nuclear.rank_for_90, 1),
        _said(frobenius.rank_for_90, 1),
        _said(spectrum.effective_rank, 1),
        f"{spectrum.matrices:,}",
    ]


def _said(spread: Spread, digits: int) -> str:
    return f"{spread.mean:.{digits}f} ± {spread.sd:.{digits}f}"


def _heads(page: Page, result: SpectrumStudy) -> None:
    page.heading("Layer by layer, head by head")
    page.table(
        ["", "layer", "head", *_columns(result.links)[1:-1]],
        [
            [
                one.matrix,
                one.layer,
                one.head,
                f"{one.energy_at_links['nuclear']:.3f}",
                f"{one.energy_at_links['frobenius']:.3f}",
                f"{one.rank_for_90['nuclear']:.1f}",
                f"{one.rank_for_90['frobenius']:.1f}",
                f"{one.effective_rank:.1f}",
            ]
            for one in result.by_head
        ],
    )


def _captured(page: Page, result: SpectrumStudy) -> None:
    found = result.captured
    if found is None:
        return
    page.heading("What links hold of it")
    page.paragraph(
        f"A spectrum says what the best matrix of rank {found.rank} could hold of cross-attention, not what links do "
        "hold. The two factors of a LIME-MHA trained on the same log, A(T,L) and A(L,E), span two subspaces of at most "
        f"that rank for the same sequence and candidates. The table has the {SIGMA}² energy of the skyline's "
        "cross-attention inside both spans. The two rankers were trained apart, so this is a hint on "
        "shared directions, not an error of LIME."
    )
    page.table(
        ["spans", f"{SIGMA}² energy inside", "lowest", "highest"],
        [
            [name, _said(one, 3), f"{one.low:.3f}", f"{one.high:.3f}"]
            for name, one in (
                (f"best of rank {found.rank} (SVD)", found.best),
                ("links, best head", found.links),
                ("links, all heads", found.links_all_heads),
                ("random", found.random),
            )
        ],
    )


def _links(page: Page, result: SpectrumStudy) -> None:
    page.heading("Links")
    rows = []
    for spectrum in _link_spectra(result):
        highest = min(spectrum.rows, spectrum.columns)
        rows.append(
            [
                f"{spectrum.matrix}, {spectrum.source}",
                f"{spectrum.rows} x {spectrum.columns}",
                _said(spectrum.energies["nuclear"].rank_for_90, 1),
                _said(spectrum.energies["frobenius"].rank_for_90, 1),
                _said(spectrum.effective_rank, 1),
                f"{spectrum.effective_rank.mean / highest:.0%}",
                f"{spectrum.matrices:,}",
            ]
        )
    columns = ["", "size", f"90 % of {SIGMA}", f"90 % of {SIGMA}²", "effective rank", "of the possible", "matrices"]
    page.table(columns, rows)
    page.paragraph(
        "The paper finds links of nearly full rank and concludes that they hardly repeat each other. Random links have "
        "nearly full rank too, so full rank of L alone shows nothing; L^P depends on the user and is the one to look "
        "at. Effective rank is exp of the entropy of the normalized singular values: k equal ones give k."
    )


def _by_links(page: Page, result: SpectrumStudy) -> None:
    if not result.by_links:
        return
    page.heading("Effective rank against l")
    lines: dict[str, list[tuple[float, float]]] = {}
    rows = []
    for one in result.by_links:
        width = int(result.rankers[one.ranker].model["width"])
        ne = next(iter(one.ne.values()), None)
        for own in one.matrices:
            possible = one.links if own.matrix == PRODUCT else min(one.links, width)
            lines.setdefault(f"{one.ranker}, {SHORT[own.matrix]}", []).append((one.links, own.effective_rank.mean))
            rows.append(
                [
                    f"{one.ranker}, {own.matrix}",
                    one.links,
                    _said(own.effective_rank, 1),
                    f"{own.effective_rank.mean / possible:.0%} of {possible}",
                    _said(own.rank_for_90["nuclear"], 1),
                    _said(own.rank_for_90["frobenius"], 1),
                    "-" if ne is None else f"{ne:.4f}",
                ]
            )
    counts = sorted({float(one.links) for one in result.by_links})
    columns = ["", "l", "effective rank", "of the possible", f"90 % of {SIGMA}", f"90 % of {SIGMA}²", "test NE"]
    if len(counts) > 1:
        svg = line_chart(
            {**lines}, x="links l", y="effective rank", references={"l, the most": [(count, count) for count in counts]}
        )
        caption = "Effective rank against the number of links, one training each."
        points = [[name, f"{x:g}", f"{y:.1f}"] for name, line in lines.items() for x, y in line]
        page.charts([Chart(svg, caption, ["ranker, matrix", "l", "effective rank"], points)])
    page.table(columns, rows)
    page.paragraph(
        "The same rankers, trained alike with other numbers of links. L and L^P are l x d, so that more links than d "
        "cannot have a higher rank; the product of A(T,L) and A(L,E), candidates by events, can have rank l."
    )


def _rankers(page: Page, result: SpectrumStudy) -> None:
    page.heading("The rankers")
    rows = []
    for name, facts in result.rankers.items():
        rows.append(
            [
                name,
                _tested(facts),
                ", ".join(f"{key} {value}" for key, value in facts.model.items() if key in _SHOWN),
                f"{facts.train['epochs']} epochs, history {facts.train['max_history']}, {facts.train_seconds:.0f} s",
            ]
        )
    page.table(["ranker", "test", "options", "training"], rows, style="words")


def _tested(facts: TrainedRanker) -> str:
    """The first task on the test part, which a run of a search may not have looked at."""
    for task, metrics in facts.test.items():
        ne, auc = metrics["ne"], metrics["auc"]
        return f"{task}: NE {'-' if ne is None else f'{ne:.4f}'}, AUC {'-' if auc is None else f'{auc:.4f}'}"
    return "-"


_SHOWN = ("width", "heads", "layers", "links", "activation", "sharpness", "query_width")
