"""The benchmark of batches: its formulas of mixing by slow loops, and what the made sets promise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.stats import chisquare
from sklearn.neighbors import NearestNeighbors

from benchmarks import batches, batchsets, mixing
from benchmarks.data import CELLS, Data


@pytest.fixture
def data() -> Data:
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(5), [300, 200, 150, 100, 50]))
    return Data((rng.normal(size=(800, 10)) + 4 * np.eye(10)[y]).astype(np.float32), y, CELLS)


def test_weights_have_the_perplexity_and_ilisi_is_the_median_of_a_loop():
    rng = np.random.default_rng(1)
    Z, batch = rng.normal(size=(80, 3)), rng.integers(3, size=80)
    distances, near = NearestNeighbors(n_neighbors=20).fit(Z).kneighbors()
    weights, found = mixing.neighbor_weights(distances, 6), []
    for i in range(80):
        ratio = np.log(weights[i, 0] / weights[i, 1:]) / (distances[i, 1:] - distances[i, 0])
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)  # exponential in the distance
        assert np.exp(-(weights[i] * np.log(weights[i])).sum()) == pytest.approx(6, rel=1e-4)
        share = [sum(w for w, j in zip(weights[i], near[i], strict=True) if batch[j] == b) for b in range(3)]
        found.append(1 / sum(p**2 for p in share))
    assert mixing.ilisi(distances, batch[near], batch) == pytest.approx((np.median(found) - 1) / 2)
    assert mixing.ilisi(distances, np.zeros_like(near), batch) == 0


def test_neighbors_are_pure_and_aligned_as_a_loop_says():
    rng = np.random.default_rng(5)
    Z, y, batch = rng.normal(size=(150, 2)), np.repeat([0, 1, 2], 50), np.repeat([0, 1], 75)
    batch[[50, 120]] = 1, 0  # type 0: batch 0 alone; type 1: both; type 2: one stray cell in batch 0
    Z[:, 0] += y
    near = NearestNeighbors(n_neighbors=15).fit(Z).kneighbors(return_distance=False)
    pure = np.mean([np.mean(y[near[i]] == y[i]) for i in range(150)])
    ratios = []
    for i in np.flatnonzero(y == 1):
        mates = [j for j in near[i] if y[j] == 1]
        if mates:
            chance = np.mean(batch[y == 1] != batch[i])
            ratios.append(np.mean([batch[j] != batch[i] for j in mates]) / chance)
    found = mixing.neighbor_scores(Z, y, batch)
    assert found["purity"] == pytest.approx(pure, abs=1e-4)
    assert found["aligned"] == pytest.approx(np.mean(ratios), abs=1e-4)


def test_each_step_left_out_changes_the_correction(data):
    batch = np.random.default_rng(6).permutation(800) % 2
    world = batchsets.Batched(batchsets.shifted(data, batch, np.random.default_rng(7), 2.0), batch, data)
    found = {row["method"]: row for row in batches.steps(world, 0)}
    assert set(found) == {"no correction", *batches.STEPS}
    assert found["no correction"]["aligned"] < 0.2
    assert found["all steps"]["aligned"] > 0.8
    assert found["no shift"]["aligned"] < 0.5


def test_kbet_counts_accepted_tests():
    rng = np.random.default_rng(2)
    batch = rng.integers(3, size=200)
    near = batch[rng.integers(200, size=(200, 30))]
    near[:50] = 0
    expected = np.bincount(batch) / 200 * 30
    accepted = [chisquare(np.bincount(row, minlength=3), expected).pvalue >= 0.05 for row in near]
    assert mixing.kbet(near, batch) == np.mean(accepted)
    assert 0.6 < np.mean(accepted) < 0.8


def test_connectivity_is_of_the_largest_strong_component():
    edges = [(0, 1), (1, 0), (2, 1), (3, 4), (4, 5), (5, 3)]  # 2 is not reached from 0 and 1
    graph = sp.csr_matrix((np.ones(6), tuple(zip(*edges, strict=True))), shape=(6, 6))
    assert mixing.graph_connectivity(graph, np.array([0, 0, 0, 1, 1, 1])) == pytest.approx((2 / 3 + 1) / 2)


def test_mixed_batches_score_high_and_separate_ones_low(data):
    batch = np.arange(800) % 2
    mixed = mixing.scores(data.X, data.y, batch)
    apart = mixing.scores(data.X + 20 * batch[:, None], data.y, batch)
    assert mixed["ilisi"] > 0.9 and mixed["kbet"] > 0.85 and mixed["connectivity"] > 0.9
    assert apart["ilisi"] < 0.01 and apart["kbet"] < 0.01 and apart["connectivity"] < 0.6


def made(way: str, data: Data, seed: int = 0) -> batchsets.Batched:
    return batchsets.WAYS[way](data, np.random.default_rng(seed))


def test_made_sets_have_in_common_what_their_names_say(data):
    for way, common in {"0 types": 0, "1 types": 1, "2 types": 2, "half of the types": 2}.items():
        world = made(f"{way} in common", data)
        homes = [set(data.y[world.batch == b]) for b in (0, 1)]
        assert len(homes[0] & homes[1]) == common
        assert world.data is data
    world = made("type 2 missing from a shifted half", data)
    assert world.missing == 2 and set(data.y[world.batch == 1]) == {0, 1, 3, 4}
    assert np.array_equal(world.data.X[world.batch == 0], data.X[world.batch == 0])
    moved = (world.data.X - data.X)[world.batch == 1].mean(axis=0)
    assert np.linalg.norm(moved) == pytest.approx(np.linalg.norm(data.X.std(axis=0)), rel=0.3)
    assert np.bincount(made("a thin shifted batch", data).batch).tolist() == [760, 40]
    share = pd.crosstab(data.y, made("most of a type in one batch", data).batch, normalize="index").max(axis=1)
    assert (share > 0.75).all()
    donors = made("a dozen small donors", data)
    assert len(np.unique(donors.batch)) == 12
    assert all(len(set(donors.data.y[donors.batch == b])) <= 3 for b in range(12))
    assert np.array_equal(donors.data.X, donors.before.X)
    assert len(np.unique(made("five technologies", data).batch)) == 5
    again = [made("five technologies", data, seed).data.X for seed in (0, 0, 1)]
    assert np.array_equal(again[0], again[1]) and not np.array_equal(again[0], again[2])


def test_what_was_measured_is_not_run_again():
    wanted = [
        batches.Job("fit", "a", 0, "vcc"),
        batches.Job("fit", "a", 0, "plain"),
        batches.Job("half", "a", 1, "vcc"),
    ]
    row = {"experiment": "fit", "set": "a", "seed": "0", "method": "vcc", "status": "ok"}
    assert batches.still_to_do(wanted, [row]) == {("fit", "a", 0): ["plain"], ("half", "a", 1): ["vcc"]}
    carried = {"experiment": "half", "set": "a", "seed": "1", "method": "fit", "status": "ok"}
    failed = row | {"method": "plain", "status": "error: memory"}
    assert batches.still_to_do(wanted, [row, carried, failed]) == {("fit", "a", 0): ["plain"]}


def test_the_page_holds_what_the_file_holds(tmp_path):
    rows = [
        {
            "experiment": "fit",
            "set": name,
            "seed": seed,
            "method": method,
            "status": "ok",
            "nmi": nmi,
            "ari": 0.5,
            "f1": f1,
        }
        for name, f1 in (("covid by sample", None), ("zheng, type 1 missing from a shifted half", 0.75))
        for seed in (0, 1)
        for method, nmi in (("plain", 0.7), ("vcc", 0.6 + seed / 10))
    ]
    rows += [
        {
            "experiment": "half",
            "set": "covid by sample",
            "seed": 0,
            "method": "new, predict",
            "status": "ok",
            "nmi": 0.5,
        }
    ]
    columns = dict.fromkeys(("ilisi", "kbet", "connectivity"), 0.25)
    pd.DataFrame([columns | row for row in rows]).to_csv(tmp_path / "batches.csv", index=False)
    text = batches.page(tmp_path / "batches.csv")
    assert "| covid by sample | 2 | 0.700 / 0.500 | 0.650 / 0.500 |" in text
    assert "| type 1 missing from a shifted half | 2 | 0.700 | 0.650 | -0.050 |" in text
    assert "| zheng, type 1 missing from a shifted half | 2 | 0.750 | 0.750 |" in text
    assert "| covid by sample, half | 0 | 0.500 |" in text
