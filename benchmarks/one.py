"""One measurement: a method on a set, or followed step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from . import scattering
from .data import Data, load
from .methods import METHODS, Found, fit_vcc
from .process import Clock


def scores(y: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    from scvcc.metrics import ari, clustering_accuracy, nmi

    values = {"acc": clustering_accuracy(y, labels), "nmi": nmi(y, labels), "ari": ari(y, labels)}
    return {name: round(value, 4) for name, value in values.items()} | {"k_found": len(np.unique(labels)), "n": len(y)}


def measure(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a job; one row of results for each part of the data that is scored."""
    variant, folder = dict(job["variant"]), Path(job["data"])
    data = load(job["set"], folder)
    if "scattering" in variant:
        data = Data(scattering.features(data.X, variant.pop("scattering")), data.y, data.kind)
    k = data.n_classes if job["k_known"] else None
    if variant.get("curve"):
        return [{"part": "all", "k_given": k} | scores(data.y, curve(data, k, job["seed"], Path(job["curve_file"])))]
    method = METHODS[job["method"]]
    if method.family is not None:
        return _measure_family(method.family, data, job["seed"])
    _warm_up(job, data)
    clock = Clock()
    labels = method.run(data, k, job["seed"], **variant)
    return [{"part": "all", "k_given": k} | clock.read() | scores(data.y, labels)]


def _measure_family(family: Callable[[Data, int, int], Found], data: Data, seed: int) -> list[dict[str, Any]]:
    """Rows for methods that share their training: each names the job that it answers."""
    return [
        {"method": method, "k_known": str(known), "part": "all", "k_given": data.n_classes if known else None}
        | seconds
        | scores(data.y, labels)
        for method, known, labels, seconds in family(data, data.n_classes, seed)
    ]


def _warm_up(job: dict[str, Any], data: Data) -> None:
    """Imports and compilation, which are not timed: the same method on 300 random points."""
    method = METHODS[job["method"]]
    if method.warm_up:
        X = np.random.default_rng(0).random((300, 8), dtype=np.float32)
        small = Data(sp.csr_matrix(X) if sp.issparse(data.X) else X, np.arange(300) % 4, data.kind)
        method.run(small, 4 if job["k_known"] else None, 0)


def curve(data: Data, k: int | None, seed: int, path: Path) -> np.ndarray:
    """Fit VCC while scoring the labels it reports on the way; the history with these scores goes to `path`."""
    import pandas as pd

    from scvcc._training.monitor import Monitor

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
