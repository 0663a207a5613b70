"""Tables, ratios and plots of given figures."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.peers.figures import Figure, last_line, markdown, medians, ratios
from bench.peers.plot import svg
from bench.report import Report, replace_section

FIGURES = {
    "1x1": {
        "Penstock": [Figure(900, 300, 100), Figure(1100, 320, 120), Figure(1000, 310, 110)],
        "UmaDB": [Figure(800, 200, 100)],
        "Redis Streams": [Figure(2000, 50, 60)],
        "Redis Streams, fsync each second": [Figure(18_000)],
    },
    "1x1000": {"Penstock": [Figure(300_000)], "UmaDB": [Figure(100_000)], "Redis Streams": [Figure(200_000)]},
    "read": {"Penstock": [Figure(500_000)], "UmaDB": [Figure(400_000)]},
    "arrow": {"Penstock": [Figure(2_000_000)]},
    "follow p50": {"Penstock": [Figure(1.5)], "UmaDB": [Figure(3.0)], "Redis Streams": [Figure(0.75)]},
    "idle": {"Penstock": [Figure(0.2)]},
    "idle memory": {"Penstock": [Figure(160)]},
}
DURABLE = ["Penstock", "UmaDB", "Redis Streams"]
WEAKER = ["Redis Streams, fsync each second"]


def test_a_ratio_compares_medians_with_the_best_durable_peer_or_the_one_that_the_bar_names() -> None:
    found = {(ratio.work.key, ratio.bar): ratio for ratio in ratios(FIGURES, DURABLE)}
    assert found["1x1", 1.0].peer == "Redis Streams"
    assert found["1x1", 1.0].times == 0.5
    assert (found["1x1000", 2.0].peer, found["1x1000", 2.0].times) == ("UmaDB", 3.0)
    assert (found["1x1000", None].peer, found["1x1000", None].times) == ("Redis Streams", 1.5)
    assert found["arrow", 3.0].times == 5.0


def test_less_time_is_better() -> None:
    (latency,) = (ratio for ratio in ratios(FIGURES, DURABLE) if ratio.work.key == "follow p50")
    assert (latency.peer, latency.times) == ("Redis Streams", 0.5)


def test_the_last_line_says_which_bars_are_missed_and_where_penstock_is_behind() -> None:
    line = last_line(FIGURES, DURABLE)
    assert "Appends: 1 × 1 0.50 of Redis Streams (1 MISSED)" in line
    assert "1 × 1,000 3.00 of UmaDB (2 reached)" in line
    assert "Reads: everything, as Arrow 5.00 of UmaDB (3 reached)" in line
    assert "idle after the start 0.2 % of a core (under 0.5 reached)" in line
    assert "memory after the start 160 MiB (under 150 MISSED)" in line
    assert line.endswith("behind in: From the call of an append to a follower: p50 0.50 of Redis Streams")
    assert "\n" not in line


def test_a_table_has_medians_with_their_spread_and_weaker_modes_are_apart() -> None:
    main, _, weak = markdown(FIGURES, DURABLE, WEAKER).partition("### Weaker modes")
    assert "| Penstock | 1,000 (900 to 1,100) | 300,000 |" in main
    assert "| UmaDB | 800 | 100,000 |" in main
    assert "| Penstock | 310 / 110 | – |" in main
    assert "18,000" not in main
    assert "| Redis Streams, fsync each second | 18,000 |" in weak


def test_the_plot_has_a_bar_for_each_system_and_the_best_is_the_longest() -> None:
    root = ET.fromstring(svg(medians(FIGURES), DURABLE))
    bars = [float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(bars) == 3 + 3 + 2
    assert bars[0] == pytest.approx(bars[2] / 2)
    assert max(bars) == bars[2] == bars[3] == bars[6]


def test_only_a_marked_section_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench:a -->\nold\n<!-- /bench:a -->\nafter\n<!-- bench:b -->\n<!-- /bench:b -->\n")
    replace_section(page, "a", "new\n")
    replace_section(page, "b", "filled")
    replace_section(page, "b", "filled again")
    assert page.read_text() == (
        "before\n<!-- bench:a -->\n\nnew\n\n<!-- /bench:a -->\nafter\n"
        "<!-- bench:b -->\n\nfilled again\n\n<!-- /bench:b -->\n"
    )
    with pytest.raises(ValueError, match="no section c"):
        replace_section(page, "c", "")


def test_a_table_of_a_section_is_markdown_and_its_medians_are_figures() -> None:
    report = Report()
    report.section("growth")
    report.table({"small": {"append, ms": [3.0, 1.0, 2.0]}, "large": {"append, ms": [4.0], "page, ms": [0.5]}})
    assert "| append, ms | 2 (1 to 3) | 4 |\n| page, ms | – | 0.5 |" in report.tables["growth"]
    assert report.figures["append, ms, small"] == 2.0
