"""The figures of docs/reliability: labels in the order of the data, and the line through the peaks."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from benchmarks import reliability
from benchmarks.data import CELLS, Data


def test_labels_are_in_the_order_of_the_data(monkeypatch):
    X, y = make_blobs(120, 8, centers=3, random_state=0)
    monkeypatch.setattr(reliability, "load", lambda *_: Data(X, y, CELLS))
    task = {"set": "any", "data": "."}
    rows = {variant: reliability.fit({**task, "variant": variant})[0] for variant in ("", "again", "shuffled rows")}
    assert all(adjusted_rand_score(y, row["labels"]) == 1 for row in rows.values())
    assert rows["again"]["digest"] == rows[""]["digest"] != rows["shuffled rows"]["digest"]


def test_the_line_through_the_peaks(monkeypatch, capsys):
    def measured(_, task, limit):
        return [{"status": "ok", "value": 50 + task["n"] / 500, "base": 300, "variant": ""}]

    monkeypatch.setattr(reliability, "in_process", measured)
    rows = list(reliability.memory(""))
    assert [row["n"] for row in rows] == list(reliability.SIZES)
    assert "peak = base + 50 MB + 2.00 KB a cell; the sizes are within 0 MB" in capsys.readouterr().out


def test_repeats_are_counted_by_what_they_found(monkeypatch, capsys):
    digests = iter(["a"] * (reliability.REPEATS - 1) + ["b"])
    monkeypatch.setattr(reliability, "in_process", lambda *_: [{"status": "ok", "digest": next(digests)}])
    (row,) = reliability.same("")
    assert row["value"] == 2 and "2 different result(s)" in capsys.readouterr().out


@pytest.mark.data
def test_variants_agree_with_the_first_fit(capsys):
    from benchmarks.data import data_folder

    reliability.prepare(1)
    rows = [row for row in reliability.ari(str(data_folder())) if row["set"] == "pbmc3k"]
    assert [row["variant"] for row in rows] == list(reliability.VARIANTS)
    assert min(np.array([row["value"] for row in rows])) > 0.8


def test_a_fit_that_fails_is_no_result(monkeypatch):
    monkeypatch.setattr(reliability, "in_process", lambda *_: [{"status": "error: gone"}])
    with pytest.raises(SystemExit, match="pbmc3k: error: gone"):
        list(reliability.same(""))
