"""The benchmark of the evidence: runs resume, and the page says what the CSV says."""

import sys

import pandas as pd

from benchmarks import evidence


def test_draws_are_made_once_and_resume(tmp_path, monkeypatch):
    out, calls = tmp_path / "evidence.csv", []
    monkeypatch.setattr(evidence, "SIZES", (60,))
    monkeypatch.setattr(evidence, "DRAWS", 2)
    monkeypatch.setattr(sys, "argv", ["evidence", "levels", "--out", str(out)])
    evidence.main()
    rows = pd.read_csv(out)
    assert len(rows) == 2 * (len(evidence.NULLS) + len(evidence.BENT)) and set(rows.hits) <= {0, 1}
    rows.iloc[:-1].to_csv(out, index=False)
    monkeypatch.setitem(evidence.MEASURES, "levels", lambda task: calls.append(task) or [{"trials": 1, "hits": 0}])
    evidence.main()
    assert len(calls) == 1 and len(pd.read_csv(out)) == len(rows)


def test_power_grows_with_the_distance():
    hits = [
        sum(evidence.power({"case": f"0.5 at {gap}", "n": 300, "draw": i})[0]["hits"] for i in range(5))
        for gap in (1, 6)
    ]
    assert hits == [0, 5]


def test_tables_count_pairs_and_average_runs():
    columns = ["case", "draw", "value", "hits", "trials"]
    scores = [
        (f"{when} {name}", k, 1) for when, k in (("before", 4), ("merged", 3)) for name in ("clusters", "nmi", "ari")
    ]
    rows = [
        ("baron", draw, value, hits, trials)
        for draw in (0, 1)
        for value, hits, trials in [("inside a type", draw, 2), ("between types", 3, 4), ("seconds", 0.5, 1), *scores]
    ]
    table = evidence.leiden_table(pd.DataFrame(rows, columns=columns))
    assert "| mouse pancreas | 0.5 of 2.0 | 3.0 of 4.0 | 4.0 / 4.000 / 4.000 | 3.0 / 3.000 / 3.000 | 0.50 |" in table
    assert "| *all* | 0.25 | 0.75 |" in table
