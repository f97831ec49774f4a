"""One measurement: a method on a set, on parts of it, or followed step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from .data import IMAGES, N_PCS, Data, load
from .methods import METHODS, fit_vcc
from .process import Clock

HALF, FIRST, LAST = "half", "first 60000", "last 10000"  # which rows are fitted, the others are new


def scores(y: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    from scvcc.metrics import ari, clustering_accuracy, nmi

    values = {"acc": clustering_accuracy(y, labels), "nmi": nmi(y, labels), "ari": ari(y, labels)}
    return {name: round(value, 4) for name, value in values.items()} | {"k_found": len(np.unique(labels)), "n": len(y)}


def measure(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a job; one row of results for each part of the data that is scored."""
    variant, folder = job["variant"], Path(job["data"])
    if "split" in variant:
        return held_out(job, folder)
    data = load(job["set"], folder)
    k = data.n_classes if job["k_known"] else None
    if variant.get("curve"):
        return [{"part": "all", "k_given": k} | scores(data.y, curve(data, k, job["seed"], Path(job["curve_file"])))]
    _warm_up(job, data)
    clock = Clock()
    labels = METHODS[job["method"]].run(data, k, job["seed"], **variant)
    return [{"part": "all", "k_given": k} | clock.read() | scores(data.y, labels)]


def _warm_up(job: dict[str, Any], data: Data) -> None:
    """Imports and compilation, which are not timed: the same method on 300 random points."""
    method = METHODS[job["method"]]
    if method.warm_up:
        X = np.random.default_rng(0).random((300, 8), dtype=np.float32)
        small = Data(sp.csr_matrix(X) if sp.issparse(data.X) else X, np.arange(300) % 4, data.kind)
        method.run(small, 4 if job["k_known"] else None, 0)


def held_out(job: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Fit on a part of the rows; score it, the predictions for the other rows, and labels carried over by 15 neighbors."""
    from sklearn.neighbors import KNeighborsClassifier

    seed, split = job["seed"], job["variant"]["split"]
    n = len(load(job["set"], folder).y)
    order = np.random.default_rng(seed).permutation(n) if split == HALF else np.arange(n)
    cut = {HALF: n // 2, FIRST: 60_000, LAST: n - 10_000}[split]
    fit_rows, new_rows = (order[cut:], order[:cut]) if split == LAST else (order[:cut], order[cut:])
    data = load(job["set"], folder, fit_rows)
    fit, new, k = data.rows(fit_rows), data.rows(new_rows), data.n_classes if job["k_known"] else None
    _warm_up(job, data)
    clock = Clock()
    model = fit_vcc(fit, k, seed) if job["method"] == "vcc" else None
    labels = METHODS[job["method"]].run(fit, k, seed) if model is None else model.labels_
    time_spent = clock.read()
    Z_fit, Z_new = _project(fit, new)
    carried = KNeighborsClassifier(15).fit(Z_fit, labels).predict(Z_new)
    parts = {"fit": (fit.y, labels), "new by neighbors": (new.y, carried)}
    if model is not None:
        parts["new"] = (new.y, model.predict(new.X))
    return [{"part": part, "k_given": k} | time_spent | scores(*pair) for part, pair in parts.items()]


def _project(fit: Data, new: Data) -> tuple[np.ndarray, np.ndarray]:
    """Features of both parts, learnt from the fitted rows."""
    if fit.kind != IMAGES:
        return fit.features, new.features
    from sklearn.decomposition import PCA

    pca = PCA(N_PCS, random_state=0).fit(fit.X)
    return pca.transform(fit.X), pca.transform(new.X)


def curve(data: Data, k: int | None, seed: int, path: Path) -> np.ndarray:
    """Fit VCC while scoring the labels it reports on the way; the history with these scores goes to `path`."""
    import pandas as pd

    from scvcc._monitor import Monitor

    seen, record = [], Monitor.record

    def watch(*args: Any, labels: np.ndarray | None = None, **kwargs: Any) -> Any:
        seen.append({} if labels is None else scores(data.y, labels))
        return record(*args, labels=labels, **kwargs)

    Monitor.record = watch
    try:
        model = fit_vcc(data, k, seed)
    finally:
        Monitor.record = record
    history = pd.DataFrame(model.history_)
    found = pd.DataFrame(seen).reindex(columns=["acc", "nmi"])
    pd.concat([history, found], axis=1).to_csv(path, index=False, float_format="%.5g")
    return model.labels_
