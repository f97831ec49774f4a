"""The benchmark itself: methods find obvious clusters, runs resume, limits hold, tables say what the CSV says."""

from __future__ import annotations

import itertools

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from benchmarks import data, limits, methods, one, process, report, run, verdict


@pytest.fixture
def blobs() -> data.Data:
    X, y = make_blobs(300, n_features=5, centers=3, cluster_std=0.5, random_state=1)
    return data.Data(X.astype(np.float32), y, data.CELLS)


@pytest.mark.parametrize("name", ["kmeans", "density_peaks", "landmark_spectral"])
def test_methods_find_separate_clusters(name: str, blobs: data.Data) -> None:
    labels = methods.METHODS[name].run(blobs, 3, 0)
    assert adjusted_rand_score(blobs.y, labels) == 1


def test_dbscan_finds_the_radius_and_calls_the_outlier_noise(blobs: data.Data) -> None:
    X = np.vstack([blobs.X, np.full((1, 5), 50, dtype=np.float32)])
    labels = methods.dbscan(data.Data(X, np.append(blobs.y, 3), data.CELLS), None, 0)
    assert labels[-1] == -1
    found = labels[:-1] >= 0
    assert found.mean() > 0.9
    assert adjusted_rand_score(blobs.y[found], labels[:-1][found]) == 1


@pytest.mark.slow  # compiles UMAP's weights
@pytest.mark.parametrize("k", [3, 5])
def test_leiden_is_tuned_to_the_number_asked_for(k: int, blobs: data.Data) -> None:
    pytest.importorskip("igraph")
    assert len(np.unique(methods.leiden(blobs, k, 0))) == k


def test_neighbors_are_sorted_and_start_with_the_point_itself(blobs: data.Data) -> None:
    indices, distances = blobs.neighbors
    exact = np.linalg.norm(blobs.X[0] - blobs.X, axis=1)
    assert indices[0, 0] == 0
    np.testing.assert_allclose(distances[0], np.sort(exact)[: blobs.n_neighbors + 1], rtol=1e-3, atol=1e-3)


def test_preparation_of_cells_learns_from_the_fitted_rows_only(tmp_path) -> None:
    rng = np.random.default_rng(0)
    counts = rng.poisson(1.0, (160, 80)).astype(np.float32)
    fit_rows = np.arange(80)
    features = []
    for extra in (0, 5):
        changed = counts.copy()
        changed[80:] += extra * rng.poisson(1.0, (80, 80))
        obs = pd.DataFrame({"cell_type": ["a", "b"] * 80}, index=[str(i) for i in range(160)])
        ad.AnnData(sp.csr_matrix(changed), obs=obs).write_h5ad(tmp_path / "pbmc3k.h5ad")
        features.append(data.load("pbmc3k", tmp_path, fit_rows).X)
    np.testing.assert_allclose(features[0][fit_rows], features[1][fit_rows], atol=1e-4)
    assert not np.allclose(features[0][80:], features[1][80:], atol=0.1)


def test_documents_without_words_are_dropped(tmp_path) -> None:
    X = sp.csr_matrix(np.array([[1.0, 0], [0, 0], [0, 1], [1, 0]], dtype=np.float32))
    parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": X.shape, "y": np.arange(4)}
    np.savez(tmp_path / "rcv1_4class_tfidf2000.npz", subset10k=np.array([True, True, True, False]), **parts)
    loaded = data.load("rcv1_10k", tmp_path)
    assert sp.issparse(loaded.X)
    assert loaded.y.tolist() == [0, 2]


@pytest.mark.slow
def test_curve_scores_the_labels_of_the_history(tmp_path, blobs: data.Data) -> None:
    labels = one.curve(blobs, 3, 0, tmp_path / "curve.csv")
    history = pd.read_csv(tmp_path / "curve.csv")
    assert {"stage", "total", "acc", "nmi"} <= set(history.columns)
    assert history.acc.dropna().iloc[-1] == pytest.approx(one.scores(blobs.y, labels)["acc"], abs=0.02)


def test_limits_of_clear_and_of_scattered_classes(tmp_path, blobs: data.Data, monkeypatch) -> None:
    scattered = data.Data(blobs.X, np.random.default_rng(0).permutation(blobs.y), blobs.kind)
    rows = []
    for prepared in (blobs, scattered):
        monkeypatch.setattr(limits, "load", lambda *_, prepared=prepared: prepared)
        rows += limits.measure({"set": "usps", "data": "", "seed": 0})
    clear, hopeless = rows
    assert clear["purity"] == clear["nmi_best"] == clear["nmi_followed"] == clear["nmi_chosen"] == 1
    assert clear["modularity_true"] == clear["modularity_chosen"]
    assert hopeless["purity"] < 0.5 and hopeless["nmi_best"] < 0.1
    assert hopeless["modularity_true"] < hopeless["modularity_chosen"]
    table = pd.DataFrame(
        [row | {"set": name, "seed": 0, "status": "ok"} for name, row in zip(("usps", "bbc"), rows, strict=True)]
    )
    table.to_csv(tmp_path / "limits.csv", index=False)
    assert "| USPS | 1.000 | 1.000 | 1.000 | 1.000 |" in limits.page(tmp_path / "limits.csv")


def test_a_run_resumes_and_gives_up_on_what_is_too_slow() -> None:
    jobs = [
        run.Job("kmeans", "bbc", 0),
        run.Job("kmeans", "bbc", 1),
        run.Job("dec", "bbc", 0),
        run.Job("dec", "bbc", 1),
    ]
    jobs += [run.Job("vcc", "bbc", 0, True, {"latent_dim": 2}), run.Job("leiden", "bbc", 0, False)]
    statuses = {0: "ok", 1: "error: no luck", 2: "timeout", 5: "ok"}
    rows = [dict(zip(run.KEY, jobs[i].key, strict=True)) | {"status": status} for i, status in statuses.items()]
    assert run.still_to_do([*jobs, jobs[4]], rows) == [jobs[1], jobs[4]]


def test_a_family_is_run_once_and_answers_all_its_methods(monkeypatch, blobs: data.Data) -> None:
    jobs = [run.Job(name, "bbc", seed) for name in ("n2d", "dec", "idec") for seed in (0, 1)]
    done = [dict(zip(run.KEY, jobs[0].key, strict=True)) | {"status": "ok"}]
    assert run.still_to_do(jobs, []) == jobs[:2]
    assert run.still_to_do(jobs, done) == [jobs[1], jobs[2]]

    def family(prepared: data.Data, k: int, seed: int):
        spent = {"seconds": 100.0, "cpu_seconds": 50.0}
        for name, labels in (("dec", prepared.y), ("idec", 0 * prepared.y)):
            yield name, True, labels, process.Clock(spent).read()

    monkeypatch.setitem(methods.METHODS, "dec", methods.Method("DEC", family=family))
    monkeypatch.setattr(one, "load", lambda *_: blobs)
    task = {"method": "dec", "set": "bbc", "seed": 0, "k_known": True, "variant": {}, "data": ""}
    good, bad = one.measure(task)
    assert (good["method"], good["nmi"], good["k_found"], good["k_given"]) == ("dec", 1, 3, 3)
    assert (bad["method"], bad["nmi"], bad["k_found"]) == ("idec", 0, 1)
    assert 100 <= good["seconds"] < 101 and 50 <= good["cpu_seconds"] < 51


def test_choice_of_jobs() -> None:
    jobs = run.choose(run.parse(["table1", "--methods", "vcc", "kmeans", "--sets", "usps"]))
    assert sum(job.method == "vcc" and job.k_known for job in jobs) == 5
    assert sum(job.method == "kmeans" for job in jobs) == 3
    assert {job.seed for job in run.choose(run.parse(["table1", "--sets", "usps", "--seeds", "7"]))} == {7}
    everything = [job for jobs in run.experiments().values() for job in jobs]
    assert run.choose(run.parse([])) == everything  # as `make bench` calls it


def test_absent_sets_are_skipped_with_a_message(tmp_path, capsys) -> None:
    args = run.parse(["table3", "--sets", "bbc", "--data", str(tmp_path), "--out", str(tmp_path / "runs.csv")])
    run.measure_all(run.choose(args), args)
    assert "bbc_news_tfidf2000.npz is not in the data folder" in capsys.readouterr().out
    assert not (tmp_path / "runs.csv").exists()


def test_processes_report_results_errors_and_lack_of_time() -> None:
    (row,) = process.in_process(list, [{"acc": 1}], 60)
    assert row["status"] == "ok"
    assert row["acc"] == 1
    assert row["peak_mb"] >= row["base_mb"] > 0
    assert process.in_process(max, [], 60)[0]["status"].startswith("error: ValueError")
    assert process.in_process(sum, itertools.count(), 1)[0]["status"] == "timeout"


def test_cells_of_the_tables() -> None:
    runs = pd.DataFrame(
        {"status": ["ok", "ok", "timeout"], "acc": [0.5, 0.7, None], "nmi": [0.4, 0.42, None], "seconds": 9.0}
    )
    assert report.cell(runs, ("acc", "nmi")) == "0.600 / 0.410 ±0.014"
    assert report.cell(runs[2:], ("acc", "nmi")) == "> 9 s"
    assert report.cell(runs[:0], ("acc", "nmi")) == "–"


def test_published_figures_are_marked_and_in_their_column() -> None:
    vcc = {row[0]: row[2:] for row in report.published_rows("table1", ("usps", "rcv1_10k", "mnist"))}
    assert vcc["*VCC, published*"] == ["0.970 / 0.937", "0.812 / 0.605", "0.964 / 0.921"]
    assert vcc["*DDC, published*"] == ["0.967 / 0.918", "–", "0.965 / 0.932"]
    scan = {row[0]: row[2:] for row in report.published_rows("simclr", tuple(report.SIMCLR))}
    assert scan["*SCAN-Loss (SimCLR), published*"] == ["0.787 / –", "–", "–"]
    assert scan["*SCAN-Loss (RA), published*"] == ["0.818 / 0.712", "0.422 / 0.441", "0.755 / 0.654"]


def test_verdict_is_read_from_the_rows_and_written_between_the_marks(tmp_path) -> None:
    row = {"status": "ok", "variant": "", "part": "all", "seed": 0, "k_given": 10}
    runs = [
        row | {"set": name, "method": method, "k_known": known, "k_found": 10 if known else found, "nmi": nmi}
        for name, shift in (("usps", 0), ("bbc", 0.1), ("zheng", 0.2))
        for method, nmi, found in (("vcc", 0.6, 12), ("leiden", 0.5, 17), ("umap_kmeans", 0.4, 0), ("kmeans", 0.3, 0))
        for known, nmi in ((True, nmi + shift), (False, nmi - 0.1 + shift))
        if known or found
    ]
    carried = {"experiment": "transfer", "split": "half", "status": "ok", "set": "zheng"}
    new_cells = [carried | {"item": "fit", "method": "predict", "nmi": 0.9}]
    new_cells += [carried | {"item": "new", "method": name, "nmi": 0.8} for name in report.CARRIERS]
    runs, new_cells = pd.DataFrame(runs), pd.DataFrame(new_cells)

    unknown, given, new = verdict.sentences(runs, new_cells)
    assert "(3 sets): VCC 0.60, Leiden 0.50" in unknown
    assert "off by 2.0 on average; Leiden's is off by 7.0" in unknown
    assert "VCC 0.80 / 0.70 / 0.60, Leiden 0.70 / 0.60 / 0.50" in given
    assert "by the trained model 0.80" in new

    page = tmp_path / "page.md"
    page.write_text(f"before\n{verdict.BEGIN}\n- old\n{verdict.END}\nafter\n")
    verdict.insert(page, ["new"])
    assert page.read_text() == f"before\n{verdict.BEGIN}\n- new\n{verdict.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        verdict.insert(page, ["new"])


@pytest.mark.parametrize("page", verdict.PAGES, ids=lambda page: page.name)
def test_pages_hold_the_marks_of_the_verdict(page) -> None:
    text = page.read_text()
    assert text.count(verdict.BEGIN) == text.count(verdict.END) == 1
