"""The benchmarks of speed: what is measured, what the tables say, and when the guard fails."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks import performance, process, profile, sketch, speed
from benchmarks.data import CELLS, Data


def measurements(**seconds: tuple[float, ...]) -> pd.DataFrame:
    """Rows as `speed` writes them, from times by case and method: mnist__vcc=(1.0, 2.0)."""
    rows = []
    for name, values in seconds.items():
        case, method = name.split("__")
        n = int(case.split("_")[1]) if case.startswith("cells") else 1000
        for repeat, value in enumerate(values):
            row = {"case": case, "method": method, "n": n, "repeat": repeat, "status": "ok", "seconds": value}
            rows.append(row | {"peak_mb": 100 + n / 100, "base_mb": 100, "nmi": 0.5, "machine": "box", "threads": 2})
    return pd.DataFrame(rows).reindex(columns=speed.COLUMNS)


def test_ratios_are_of_medians_and_ours_to_theirs():
    rows = measurements(mnist__umap_kmeans=(9.0, 10.0, 50.0), mnist__vcc=(1.0, 5.0, 6.0))
    table = speed.ratios(rows).set_index("method")
    assert table.seconds.to_dict() == {"vcc": 5.0, "umap_kmeans": 10.0}
    assert table.ratio["umap_kmeans"] == 0.5
    assert np.isnan(table.ratio["vcc"])


def test_a_repeated_measurement_replaces_the_old_one_and_failures_do_not_count():
    rows = pd.concat([measurements(ifnb__tl_vcc=(8.0,)), measurements(ifnb__tl_vcc=(2.0, 3.0))], ignore_index=True)
    failed = rows.tail(1).assign(repeat=2, status="timeout", seconds=999.0)
    assert speed.ratios(pd.concat([rows, failed], ignore_index=True)).seconds.tolist() == [2.5]


def test_growth_is_the_slope_on_logarithmic_axes():
    times = {f"cells_{n}__vcc": ((n / 25_000) ** 1.5,) for n in speed.GROWTH}
    table = speed.ratios(measurements(**times))
    assert speed.exponent(table, "vcc") == pytest.approx(1.5)
    assert speed.exponent(table, "vcc", "mb") == pytest.approx(1.0)
    assert np.isnan(speed.exponent(table, "leiden"))


@pytest.mark.parametrize(("ours", "fails"), [(4.4, False), (4.6, True)])
def test_the_guard_fails_above_the_goal(monkeypatch, tmp_path, ours, fails):
    times = {"vcc": ours, "umap_kmeans": 10.0, "umap_pixels": 20.0}
    monkeypatch.setattr(
        speed, "in_process", lambda _, task, limit: [{"status": "ok", "seconds": times[task["method"]]}]
    )
    monkeypatch.setattr(speed, "prepare", lambda threads: None)  # the environment is that of all tests
    command = ["speed", "mnist", "--check", "--repeats", "2", "--out", str(tmp_path / "speed.csv")]
    monkeypatch.setattr("sys.argv", command)
    if fails:
        with pytest.raises(SystemExit, match="mnist, ratio 0.46 > 0.45"):
            speed.main()
    else:
        speed.main()
    assert len(pd.read_csv(tmp_path / "speed.csv")) == 6


def test_stages_exclude_each_other(monkeypatch):
    clock = np.zeros(2)
    monkeypatch.setattr(profile.Stopwatch, "_now", staticmethod(lambda: clock.copy()))

    def work(seconds: float) -> None:
        clock[:] += seconds

    watch = profile.Stopwatch()
    inner = watch.timed("inner", lambda: work(5))
    outer = watch.timed("outer", lambda: (work(2), inner(), work(1)))
    outer()
    inner()
    assert {stage: spent[0] for stage, spent in watch.spent.items() if spent[0]} == {"inner": 10, "outer": 3}


def test_every_stage_is_timed_and_the_functions_are_put_back():
    from scvcc import VCC
    from scvcc._training import recipe as _train

    before = _train.fit_encoder
    X = np.random.default_rng(0).normal(size=(60, 4)) + 9 * np.arange(60)[:, None] % 2
    with profile.watched() as watch:
        VCC(2, hidden=(4,), n_neighbors=5, n_pcs=2).fit(X)
    assert _train.fit_encoder is before
    assert set(watch.spent) == {*profile.STAGES.values(), "other"}


def test_operations_of_a_training_step():
    forward = 2 * 10 * (3 * 5 + 5 * 2)
    backward = 2 * 10 * (3 * 5 + 2 * 5 * 2)  # no gradient of the input
    assert profile.trained_flops([3, 5, 2], 10) == forward + backward


def test_memory_is_counted_from_where_a_measurement_starts():
    held = np.ones(30_000_000)
    full = process.forget_peak()
    del held
    if process.forget_peak() > full - 200:
        pytest.skip("the peak cannot be reset here")
    used = np.ones(15_000_000)
    assert process.peak_mb() < full - 50
    assert used.sum() > 0


def test_a_class_is_made_rare():
    y = np.repeat([0, 1, 2], 10_000)
    data = sketch.with_a_rare_class(Data(np.arange(30_000.0)[:, None], y, CELLS), 1, seed=0)
    assert (data.y == 1).mean() == pytest.approx(sketch.RARE_SHARE, rel=0.02)
    assert (data.y != 1).sum() == 20_000
    assert set(data.X[data.y == 1, 0]) <= set(range(10_000, 20_000))


def test_best_f1_is_that_of_the_best_cluster():
    is_rare = np.array([1, 1, 1, 0, 0, 0], bool)
    assert sketch.best_f1(is_rare, np.array([0, 0, 0, 1, 1, 1])) == 1
    assert sketch.best_f1(is_rare, np.array([0, 0, 1, 1, 1, 1])) == pytest.approx(2 * 2 / (2 + 3))


def test_a_class_is_kept_together_or_not():
    is_rare = np.arange(100) < 20
    apart, mixed = np.where(is_rare, 0.0, 9.0), np.zeros(100)
    noise = np.random.default_rng(0).normal(size=(100, 2))
    assert sketch.kept_together(is_rare, noise + apart[:, None]) == 1
    assert sketch.kept_together(is_rare, noise + mixed[:, None]) == pytest.approx(0.2, abs=0.1)


def test_tasks_train_on_all_once_and_on_every_sketch():
    found = sketch.tasks(["ifnb"], [0, 1])
    assert len(found) == 2 * (1 + 2 * len(sketch.SIZES["ifnb"]))
    assert [task["kind"] for task in found if task["size"] is None] == ["spread"] * 2


def test_pages_say_what_the_files_say(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.report.DOCS", tmp_path)
    rows = measurements(mnist__vcc=(5.0,), mnist__umap_kmeans=(10.0,), cells_25000__vcc=(1.0,), cells_50000__vcc=(2.0,))
    rows.to_csv(tmp_path / "speed.csv", index=False)
    stages = {"set": "ifnb", "n": 9, "status": "ok", "seconds": 2.0, "threads": 2, "machine": "box", "commit": "abc"}
    table = [{"stage": "all", "share": 1.0}, {"stage": "encoder", "share": 0.7, "gflop": 50.0, "of_mm": 0.65}]
    before = [stages | row | {"commit": "aaa", "seconds": 4.0, "repeat": 0} for row in table]
    after = [
        stages | row | {"repeat": repeat, "seconds": seconds}
        for repeat, seconds in enumerate((2, 1, 9))
        for row in table
    ]
    pd.DataFrame([*before, *after]).to_csv(tmp_path / "profile.csv", index=False)
    pages = performance.pages(tmp_path)
    assert list(pages) == ["performance_1_speed", "performance_2_profile"]
    assert "| 5.00 |" in pages["performance_1_speed"]
    assert "| 0.50 | ≤ 0.45 |" in pages["performance_1_speed"]
    assert "| growth of time, exponent | 1 | ≤ 1.05 |" in pages["performance_1_speed"]
    assert (tmp_path / "growth.png").exists()
    assert "| encoder | 4.00 (70%) | 2.00 (70%) |" in pages["performance_2_profile"]
    assert "| ifnb, abc | encoder | 50 | 65% |" in pages["performance_2_profile"]


def test_a_random_sketch_brings_the_graph_of_its_rows():
    X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    given = sketch.random_sketch(Data(X, np.zeros(60, int), CELLS), 30, seed=0)
    assert (np.diff(given["rows"]) > 0).all()
    assert given["graph"].shape == (30, 30)
    first = given["graph"][0]
    lengths = np.linalg.norm(X[given["rows"][first.indices]] - X[given["rows"][0]], axis=1)
    np.testing.assert_allclose(first.data, lengths, rtol=1e-5)
