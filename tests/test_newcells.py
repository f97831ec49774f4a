"""The benchmark of new points: which rows are new, what is scored, and what the tables say."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from benchmarks import newcells, report
from benchmarks.data import Data
from scvcc import VCC


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A stand-in for the IFN-β set: 3 types, 2 conditions, 4 donors, and cells without a label."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    y = rng.integers(3, size=320)
    rates = np.where(np.arange(90)[None] % 3 == y[:, None], 6.0, 0.5)
    obs = pd.DataFrame(index=[str(i) for i in range(320)])
    obs["kang_cell"] = pd.Categorical(np.where(np.arange(320) < 20, None, np.array(["a", "b", "c"])[y]))
    obs["stim"] = pd.Categorical(np.where(np.arange(320) % 3 == 0, "CTRL", "STIM"))
    obs["donor"] = pd.Categorical((np.arange(320) % 4).astype(str))
    ad.AnnData(sp.csr_matrix(rng.poisson(rates).astype(np.float32)), obs=obs).write_h5ad(path / "ifnb_kang_pbmc.h5ad")
    return path


def test_splits_cover_all_labeled_cells_once(folder):
    obs = ad.read_h5ad(folder / "ifnb_kang_pbmc.h5ad").obs.dropna()
    for split in newcells.SPLITS["ifnb"]:
        fit, new = newcells.split_rows(newcells.Job("transfer", "ifnb", split, 0), folder)
        assert sorted([*fit, *new]) == list(range(300))
        if split == "stim = CTRL":
            assert set(obs["stim"].iloc[fit]) == {"CTRL"} and set(obs["stim"].iloc[new]) == {"STIM"}
        if split == "half of the donors":
            assert len(set(obs["donor"].iloc[fit])) == 2
            assert not set(obs["donor"].iloc[fit]) & set(obs["donor"].iloc[new])
    halves = [newcells.split_rows(newcells.Job("transfer", "ifnb", "half", seed), folder)[0] for seed in (0, 0, 1)]
    assert np.array_equal(halves[0], halves[1]) and not np.array_equal(halves[0], halves[2])


def test_clusters_are_named_by_the_fitted_rows():
    labels, y = np.array([0, 0, 0, 1, 1, 2]), np.array([2, 2, 0, 1, 1, 0])
    assert newcells.names_of(labels, y, 3).tolist() == [2, 1, 0]


def test_reliability_is_counted_in_bins():
    confidence, right = np.array([0.05, 0.92, 0.98, 1.0]), np.array([True, True, False, True])
    rows = newcells.reliability(confidence, right, "K")
    assert [(row["item"], row["n"]) for row in rows] == [("bin 0", 1), ("bin 9", 3)]
    assert rows[1]["confidence"] == pytest.approx(0.9667, abs=1e-4)
    assert rows[1]["named"] == pytest.approx(2 / 3, abs=1e-4)
    expected = (0.95 * 1 + (2.9 / 3 - 2 / 3) * 3) / 4
    assert report.calibration_error(pd.DataFrame(rows)) == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow  # compiles scanpy's ingest
def test_measurements_on_cells_that_are_easy(folder):
    job = newcells.Job("transfer", "ifnb", "half", 0)
    rows = pd.DataFrame(newcells.measure({"job": vars(job), "data": str(folder)}))
    scored = rows[rows.item.isin(["fit", "new"])]
    assert scored.method.tolist() == ["predict", "predict", "neighbors", "ingest"]
    assert (scored.named > 0.95).all() and (scored.acc > 0.95).all()


@pytest.mark.slow
def test_confidence_is_compared_with_a_second_fit(folder):
    rows = pd.DataFrame(newcells.again(newcells.Job("again", "ifnb", "thirds", 0), folder))
    assert set(rows.method) == {f"{k}{end}" for k in report.AGAIN for end in ("", ", classes")}
    mine = rows[rows.method == "K"]
    assert mine.n.sum() == 100 and mine.named.iloc[-1] > 0.9


def test_clusters_are_matched_one_to_one():
    labels, others = np.array([0, 0, 0, 1, 1, 2]), np.array([1, 1, 0, 0, 0, 0])
    assert newcells.is_matched(labels, others).tolist() == [True, True, False, True, True, False]


def test_how_far_a_type_is_apart():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 4)) + np.repeat([0, 50, 5], 1000)[:, None] * np.array([1, 0, 0, 0])
    fit = Data(X[:2000], np.repeat([0, 1], 1000), "cells")
    assert newcells.apart(fit, X[2000:]) == pytest.approx(5, rel=0.1)


def test_documents_stay_sparse():
    X = np.random.default_rng(0).normal(size=(80, 6)).clip(0).astype(np.float32)
    model = VCC(2, hidden=(8,), epochs=0).fit(X)
    dense, sparse = (
        newcells.novelties(model, Data(part, np.arange(80) % 2, "documents"), part, 0) for part in (X, sp.csr_matrix(X))
    )
    np.testing.assert_allclose(dense, sparse, atol=1e-6)


@pytest.mark.slow
def test_types_that_are_left_out_are_scored(folder):
    rows = pd.DataFrame(newcells.unseen(newcells.Job("unseen", "ifnb", "half", 0), folder))
    assert rows.groupby("method").size().tolist() == [3, 3, 3, 3]
    assert rows[rows.method == "distance in PCA space"].auroc.min() > 0.95
    assert rows.auroc.between(0, 1).all()


@pytest.mark.slow
def test_a_query_of_other_donors(folder):
    rows = pd.DataFrame(newcells.shift(newcells.Job("shift", "ifnb", newcells.DONORS, 0), folder))
    assert rows.method.tolist() == ["novelty", "novelty, with batches"]
    assert (rows.unassigned < 0.1).all() and (rows.lost < 0.1).all() and rows.quartile.between(0.1, 0.5).all()


def test_runs_resume():
    jobs = newcells.jobs()
    assert len(jobs) == len(set(jobs))
    done = [dict(zip(newcells.KEY, map(str, vars(job).values()), strict=True)) | {"status": "ok"} for job in jobs[:3]]
    done[1]["status"] = "timeout"
    assert newcells.still_to_do(jobs, done) == [jobs[1], *jobs[3:]]
    chosen = newcells.choose(newcells.parse(["unseen", "--sets", "zheng", "--seeds", "4"]))
    assert chosen == [newcells.Job("unseen", "zheng", split, 4) for split in ("half", *newcells.WRONG_K)]
    chosen = newcells.choose(newcells.parse(["unseen", "--sets", "zheng", "bbc", "--splits", "half", "--seeds", "4"]))
    assert chosen == [newcells.Job("unseen", name, "half", 4) for name in ("zheng", "bbc")]


def test_page_of_new_points(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "DOCS", tmp_path)
    common = {"status": "ok", "set": "zheng", "split": "half", "experiment": "transfer"}
    rows = []
    for seed in (0, 1):
        rows.append(
            common | {"seed": seed, "method": "predict", "item": "fit", "n": 100, "acc": 0.9, "nmi": 0.8, "named": 0.7}
        )
        for i, method in enumerate(report.CARRIERS):
            scores = {"acc": 0.5 + i / 10 + seed / 100, "nmi": 0.4, "named": 0.3}
            rows.append(common | {"seed": seed, "method": method, "item": "new", "n": 50} | scores)
        for method in report.AGAIN:
            for end, named in (("", 0.85), (", classes", 0.75)):
                bins = {
                    "experiment": "again",
                    "method": method + end,
                    "item": "bin 9",
                    "confidence": 0.95,
                    "named": named,
                }
                rows.append(common | {"seed": seed, "n": 50} | bins)
    for method, auroc in (("confidence", 0.6), ("novelty, single", 0.7), ("novelty, pooled", 0.8)):
        for kind in (0, 1):
            found = {"method": method, "item": f"type {kind}", "auroc": auroc + kind / 10}
            found |= {"apart": 1 + 3 * kind, "unassigned": 0.4 + kind / 2, "lost": 0.02 + kind / 50, "rare": 0.1}
            rows.append(common | {"experiment": "unseen", "seed": 0} | found)
            if method == "novelty, pooled":
                rows.append(common | {"experiment": "unseen", "seed": 1} | found | {"auroc": 0.9})
                rows.append(common | {"experiment": "unseen", "seed": 0} | found | {"split": "half, K + 5"})
    shifted = {"experiment": "shift", "set": "ifnb", "split": "half of the donors", "item": "new", "quartile": 0.8}
    for seed, method, unassigned in ((0, "novelty", 0.6), (1, "novelty", 0.8), (0, "novelty, with batches", 0.1)):
        rows.append(common | shifted | {"seed": seed, "method": method, "unassigned": unassigned, "lost": 0.5})
    rows.append(common | {"experiment": "time", "seed": 0, "method": "predict", "item": "new", "cpu_seconds": 4.2})
    pd.DataFrame(rows).to_csv(tmp_path / "newcells.csv", index=False)
    text = report.new_cells_page(tmp_path / "newcells.csv")
    wanted = (
        "| sorted PBMC | half | 2 | 100 | 50 | 0.900 / 0.800 / 0.700 | 0.505 / 0.400 / 0.300 | 0.605 / 0.400 / 0.300 |"
    )
    assert wanted in text
    assert "| predict | 4.2 |" in text
    assert "| sorted PBMC | 2 | 0.100 | 0.100 | 0.100 | 0.200 | 0.200 | 0.200 |" in text  # expected calibration errors
    assert "| sorted PBMC | 2 | 2 | 0.650 (0.60–0.70) | 0.750 (0.70–0.80) | 0.875 (0.85–0.90) |" in text
    assert (
        "| novelty, pooled | 2 | 0.875 ±0.035 | 0.90 ±0.00 (1 types) | 0.40 ±0.00 (1 types) | 0.030 ±0.000 | 0.10 ±0.00 |"
        in text
    )
    assert "| novelty, pooled, K + 5 (1 sets) | 1 | 0.850 | 0.90 (1 types) | 0.40 (1 types) | 0.030 | 0.10 |" in text
    assert "| IFN-β PBMC | half of the donors | 2 | 0.70 ±0.14 | 0.50 ±0.00 | 0.80 ±0.00 |" in text
    assert "| IFN-β PBMC | half of the donors, as batches | 1 | 0.10 | 0.50 | 0.80 |" in text
    assert (tmp_path / "reliability.png").exists()


def test_page_of_unknown_numbers_of_clusters():
    row = {"status": "ok", "variant": "", "seed": 0, "set": "usps"}
    runs = pd.DataFrame(
        [
            row | {"method": "kmeans", "k_known": True, "k_given": 10, "k_found": 10, "nmi": 0.1},
            row | {"method": "vcc", "k_known": False, "k_found": 12, "nmi": 0.9},
            row | {"method": "vcc", "k_known": False, "k_found": 9, "nmi": 0.8, "seed": 1},
            row | {"method": "leiden", "k_known": False, "k_found": 17, "nmi": 0.7},
        ]
    )
    text = report.unknown_k_page(runs)
    assert "| USPS | 10 | 10.5 | 1.5 | 0.850 | 17.0 | 7.0 | 0.700 |" in text
    assert "| *mean* |  |  | 1.5 | 0.850 |  | 7.0 | 0.700 |" in text
