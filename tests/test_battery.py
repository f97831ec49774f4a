"""Bad arguments to every public function: a documented error that names the argument, and nothing is changed.

Bad values follow from the type in the signature, here by a table of their own; what depends on the data is listed below.
"""

import datetime
import inspect
import logging
import os
import random
import re
import signal
import sys
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace

import anndata as ad
import matplotlib as mpl
import numba
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.exceptions import NotFittedError
from threadpoolctl import threadpool_info

import scvcc
from scvcc import metrics, pl, pp, tl

DOCUMENTED = ValueError, TypeError, KeyError, NotFittedError, FileNotFoundError
NAN, INF = float("nan"), float("inf")
DAY, SPAN = datetime.datetime(2020, 1, 1), np.timedelta64(3)
UNHASHABLE = [["vcc"], {"vcc": 1}, {"vcc"}, np.array(["vcc", "a"])]
# what no argument of a kind can be; "maybe" kinds also take None
BAD = {
    "str": [*UNHASHABLE, 1, True, NAN, b"vcc"],
    "int": ["3", "x", True, 1.5, NAN, INF, DAY, SPAN, np.array(4), np.array([1, 2]), [3], {3}, {"a": 1}, 1j],
    "float": ["0.5", True, NAN, INF, -INF, -1, DAY, SPAN, np.array([0.5]), [0.5], {0.5}, {"a": 1}, 1j],
    "bool": [1, 0, "yes", "", NAN, [], [True], np.array([True, False]), {"a": True}],
    "dict": [1, "a", [1], {1}, True],
}
"""Kind, by name of the argument, wherever it occurs; a `?` says that None is allowed."""
KINDS = {
    "str": "use_rep? layer? neighbors_key? obsp? metric? key key_added? groupby by cmap",
    "int": "n_clusters? n_pcs? n_neighbors latent_dim min_cluster_size batch_size epochs? max_train_cells? n_jobs? "
    "n_runs n_comps runners_up ncols",
    "float": "share batch_strength learning_rate min_confidence? max_novelty? size?",
    "bool": "support merge_unsupported copy progress keep_stages normalize return_fig frameon show? use_raw? tfidf?",
    "dict": "loss_weights? extra?",
}
KIND_OF = {name.rstrip("?"): kind for kind, names in KINDS.items() for name in names.split()}
NOT_BOOL = {"confusion": {"normalize"}}  # where a name means something else
NULLABLE = {name[:-1] for names in KINDS.values() for name in names.split() if name.endswith("?")}


@pytest.fixture(scope="module")
def world(tmp_path_factory, everything):
    """A fitted model, an adata with every kind of result, and each public function with arguments that work."""
    folder = tmp_path_factory.mktemp("battery")
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(m, 1, (30, 6)) for m in (0, 4)]).astype(np.float32)
    obs = pd.DataFrame(index=[f"c{i}" for i in range(60)])
    obs["sample"] = pd.Categorical(np.repeat(["s", "t"], 30)[rng.permutation(60)])
    obs["number"] = rng.normal(size=60)
    obs["hole"] = pd.Categorical(np.where(np.arange(60) < 3, None, "s"))
    obs["nothing"] = np.nan
    obs["stranger_confidence"] = 1.0
    adata = ad.AnnData(X, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(6)]))
    adata.layers["counts"] = np.abs(np.rint(X))
    adata.layers["bad"] = np.where(np.arange(6) == 2, NAN, X)
    adata.layers["text"] = X.astype(str)
    adata.obsm["X_short"] = X[:, :2]
    adata.obsm["X_nan"] = np.where(np.arange(6) == 2, INF, X)
    adata.obsm["table"] = pd.DataFrame({"a": ["x"] * 60}, index=obs.index)
    adata.uns["lonely"] = {"connectivities_key": "gone", "distances_key": "gone"}
    adata.obsp["negative"] = sp.csr_matrix(-np.eye(60, k=1))
    adata.obsp["empty"] = sp.csr_matrix((60, 60))
    quick = {"hidden": (8,), "epochs": 0, "progress": False}
    file = folder / "model.safetensors"
    tl.vcc(adata, 2, n_neighbors=8, keep_stages=True, save_to=file, **quick)
    tl.stability(adata, 2, progress=False)
    tl.suggest_n_clusters(adata, k_range=(2, 4), progress=False)
    tl.test_clusters(adata, "vcc")
    model = scvcc.VCC(2, n_neighbors=8, hidden=(8,), epochs=0).fit(X)
    adata.write_h5ad(folder / "cells.h5ad")
    (folder / "text.h5ad").write_text("no cells")
    graph = adata.obsp["distances"]
    calls = {
        "tl.vcc": (tl.vcc, {"adata": adata, "n_clusters": 2, **quick}),
        "tl.map_query": (tl.map_query, {"adata": adata, "reference": file, "key_added": "mapped"}),
        "tl.stability": (tl.stability, {"adata": adata, "n_runs": 1, "progress": False}),
        "tl.suggest_n_clusters": (tl.suggest_n_clusters, {"adata": adata, "k_range": (2, 4), "progress": False}),
        "tl.test_clusters": (tl.test_clusters, {"adata": adata, "key": "vcc"}),
        "tl.cut": (tl.cut, {"adata": adata, "n_clusters": 2}),
        "pp.lsa": (pp.lsa, {"adata": adata, "n_comps": 2, "layer": "counts"}),
        "pp.neighbors": (pp.neighbors, {"adata": adata, "batch_key": "sample", "key_added": "own"}),
        **{f"pl.{name}": (getattr(pl, name), {"adata": adata, "return_fig": True}) for name in pl.__all__},
        "metrics.nmi": (metrics.nmi, {"labels_true": [0, 1], "labels_pred": [0, 1]}),
        "metrics.ari": (metrics.ari, {"labels_true": [0, 1], "labels_pred": [0, 1]}),
        "metrics.clustering_accuracy": (metrics.clustering_accuracy, {"labels_true": [0, 1], "labels_pred": [0, 1]}),
        "metrics.compactness": (metrics.compactness, {"embedding": X[:, :2], "labels": [0, 1] * 30}),
        "metrics.batch_mixing": (metrics.batch_mixing, {"graph": graph, "batch": [0, 1] * 30}),
        "metrics.boundary_score": (metrics.boundary_score, {"distances": graph}),
        "VCC": (lambda X=X, **settings: scvcc.VCC(**settings).fit(X), {"n_clusters": 2, "hidden": (8,), "epochs": 0}),
        "VCC.fit": (lambda **given: scvcc.VCC(2, hidden=(8,), epochs=0).fit(**given), {"X": X, "graph": graph}),
        "VCC.transform": (model.transform, {"X": X}),
        "VCC.predict": (model.predict, {"X": X}),
        "VCC.predict_proba": (model.predict_proba, {"X": X}),
        "VCC.novelty": (model.novelty, {"X": X}),
        "VCC.save": (model.save, {"path": folder / "saved.safetensors"}),
        "VCC.load": (scvcc.VCC.load, {"path": file}),
    }
    calls["pl.confusion"][1]["groupby"] = "sample"
    calls["pl.composition"][1]["by"] = "sample"
    return SimpleNamespace(
        before=everything(adata), adata=adata, X=X, calls=calls, folder=folder, graph=graph, file=file
    )


def parameters(name):
    """Names of the parameters of a public function."""
    module, _, function = name.partition(".")
    if name == "VCC":
        return list(inspect.signature(scvcc.VCC).parameters)
    owner = {"tl": tl, "pp": pp, "pl": pl, "metrics": metrics, "VCC": scvcc.VCC}[module]
    return list(inspect.signature(getattr(owner, function)).parameters)


PUBLIC = [
    *(f"{where}.{name}" for where, module in (("tl", tl), ("pp", pp), ("pl", pl)) for name in module.__all__),
    *("VCC", "VCC.save", "VCC.load"),
]
BY_KIND = [
    (function, name, value)
    for function in PUBLIC
    for name in parameters(function)
    if name in KIND_OF and name not in NOT_BOOL.get(function.partition(".")[2], ())
    for value in [*BAD[KIND_OF[name]], *([] if name in NULLABLE else [None])]
    if not (value is None and name in ("n_neighbors", "key_added"))  # open in some functions
]


NO_ADATA = [(name, "adata", bad) for name in PUBLIC if "adata" in parameters(name) for bad in (None, np.eye(3), "a")]


def graph_of(shape=(60, 60), **changes):
    """A sparse matrix, damaged as scipy allows."""
    rng = np.random.default_rng(0)
    matrix = sp.csr_matrix(rng.random(shape) * (rng.random(shape) < 0.2))
    for name, change in changes.items():
        change(getattr(matrix, name))
    return matrix


def put(place, value):
    def change(array):
        array[place] = value

    return change


def eye(n=60, d=6, **values):
    X = np.random.default_rng(0).normal(size=(n, d))
    X[0, 0] = values.get("first", 0)
    return X


MATRICES = {
    "nan": eye(first=NAN),
    "inf": eye(first=INF),
    "beyond": eye(first=1e300),
    "columns": eye(d=5),
    "1d": np.arange(6.0),
    "3d": np.zeros((2, 3, 4)),
    "empty": np.empty((0, 6)),
    "text": np.full((60, 6), "a"),
    "complex": eye() * 1j,
    "none": None,
    "number": 3,
    "dict": {"a": 1},
    "object": np.full((60, 6), object()),
    "days": np.full((60, 6), np.datetime64("2020-01-01")),
    "spans": np.full((60, 6), SPAN),
    "indices": graph_of((60, 6), indices=put(0, 99)),
    "negative_indices": graph_of((60, 6), indices=put(0, -5)),
    "indptr": graph_of((60, 6), indptr=put(5, 10**6)),
    "indptr_end": graph_of((60, 6), indptr=put(-1, 10**6)),
}
GRAPHS = {
    "shape": graph_of((59, 59)),
    "dense": np.eye(60),
    "none": "x",
    "nan": graph_of(data=put(0, NAN)),
    "inf": graph_of(data=put(0, INF)),
    "negative": graph_of(data=put(0, -1)),
    "empty": sp.csr_matrix((60, 60)),
    "complex": sp.csr_matrix(graph_of().astype(complex) * (1 + 1j)),
    "indices": graph_of(indices=put(0, 99)),
    "negative_indices": graph_of(indices=put(0, -5)),
    "indptr": graph_of(indptr=put(5, 10**6)),
    "indptr_end": graph_of(indptr=put(-1, 10**6)),
}
LABELS = {
    "number": 3,
    "none": None,
    "empty": [],
    "square": np.zeros((60, 2)),
    "missing": [0, NAN] * 30,
    "nothing": [None] * 60,
    "length": [0, 1],
    "dict": {"a": 1},
    "set": {1, 2},
    "text": "abc",
    "nested": [[0]] * 60,
}
OF_DATA = [
    # a matrix, a graph, labels
    *(("VCC.fit", "X", key) for key in MATRICES if key not in ("columns", "beyond")),
    *((f"VCC.{way}", "X", key) for way in ("transform", "predict", "predict_proba", "novelty") for key in MATRICES),
    *(("VCC.fit", "graph", key) for key in GRAPHS),
    *(("metrics.boundary_score", "distances", key) for key in GRAPHS if key != "shape"),
    *(("metrics.batch_mixing", "graph", key) for key in GRAPHS if key in ("shape", "none", "indices", "indptr")),
    *((f"metrics.{m}", n, key) for m in ("nmi", "ari", "clustering_accuracy") for key in LABELS
      for n in ("labels_true", "labels_pred") if key != "length"),
    *(("metrics.compactness", "labels", key) for key in LABELS),
    *(("metrics.batch_mixing", "batch", key) for key in LABELS),
    *(("VCC.fit", "batch", key) for key in LABELS if key not in ("none", "text")),
]  # fmt: skip
TABLES = {"X": MATRICES, "graph": GRAPHS, "distances": GRAPHS}
BY_VALUE = [
    ("tl.vcc", "n_clusters", [0, 1, -1, 61, 10**30, -INF]),
    ("VCC", "n_clusters", [0, 1, 61]),
    ("tl.vcc", "use_rep", ["", "gone", "X_nan", "table"]),
    ("tl.vcc", "n_pcs", [-1, 7, 10**30]),
    ("tl.vcc", "layer", ["", "gone", "bad", "text"]),
    ("tl.vcc", "neighbors_key", ["", "gone", "lonely", "vcc"]),
    ("tl.vcc", "obsp", ["", "gone", "negative", "empty"]),
    ("tl.vcc", "n_neighbors", [0, 1, -3, 60, 10**30]),
    ("tl.vcc", "metric", ["", "nothing like it", "haversine"]),
    ("tl.vcc", "batch_key", ["", "gone", "hole", "nothing", [], ["gone"], [1], {"sample": 1}, 3, [["sample"]]]),
    ("tl.vcc", "restrict_to", ["sample", ("sample",), ("gone", ["s"]), ("sample", ["q"]), ("sample", []), 3, {1: 2},
                               (["sample"], ["s"]), ({"a": 1}, ["s"]), ("sample", 3), ("nothing", ["s"]), "[", "[1"]),
    ("tl.vcc", "key_added", ["", "a/b", "neighbors", "pca", "lsa", "lonely", "stranger", "sample"]),
    ("tl.vcc", "device", ["", "gpu", "cuda:99", "xpu", "hpu", "cpu:7", 3, None, ["cpu"], {"cpu"}]),
    ("tl.vcc", "random_state", ["x", -1, 1.5, NAN, 2**40, True, [1], {1}, np.array([1, 2]), DAY]),
    ("tl.vcc", "save_to", [True, 3, ["a"], "", "/gone/model", ".", "a\0b"]),
    ("tl.vcc", "checkpoint", [True, 3, ["a"], "", "/gone/fit", ".", "a\0b", "text.h5ad", "/dev/null"]),
    ("VCC", "checkpoint", [True, "", "/gone/fit"]),
    ("tl.vcc", "hidden", [16, "16", (0,), (-1,), (1.5,), (True,), ("a",), {16}, {16: 1}, None, (NAN,), [[16]], (10**30,)]),
    ("tl.vcc", "objective", ["", "Compact", 1, None, ["compact"], {"compact"}, np.array(["compact", "paper"])]),
    ("tl.vcc", "loss_weights", [{"gone": 1}, {"boundary": -1}, {"boundary": NAN}, {"boundary": "1"}, {"boundary": True},
                                {"boundary": INF}, {1: 1}, {"boundary": SPAN},
                                dict.fromkeys(("boundary", "contraction", "expansion", "clustering"), 0)]),
    ("tl.vcc", "epochs", [-1]),
    ("tl.vcc", "batch_size", [0, -1]),
    ("tl.vcc", "learning_rate", [0, -1, 1e300]),
    ("tl.vcc", "max_train_cells", [0, 1, -1]),
    ("tl.vcc", "batch_strength", [-0.1, 1.1]),
    ("tl.vcc", "n_jobs", [0, -2, 10**30]),
    ("tl.vcc", "latent_dim", [0, -1, 10**30]),
    ("tl.vcc", "min_cluster_size", [0, -1]),
    ("tl.vcc", "nonsense", [1]),
    ("tl.map_query", "reference", [None, 3, "gone", "", ["a"], {}, True, b"a", "text.h5ad", scvcc.VCC()]),
    ("tl.map_query", "key_added", ["", "a/b", "neighbors", "lonely", "stranger", "sample"]),
    ("tl.map_query", "min_confidence", [-0.1, 1.1]),
    ("tl.map_query", "max_novelty", [-0.1, 1.1]),
    ("tl.stability", "n_runs", [0, -1]),
    ("tl.stability", "share", [0, 1, 0.001, 1.5]),
    ("tl.stability", "key", ["", "gone", "sample", "lonely"]),
    ("tl.stability", "random_state", ["x", -1, NAN, DAY]),
    ("tl.suggest_n_clusters", "k_range", [3, "ab", (2,), (2, 3, 4), (1, 4), (4, 2), (2.5, 4), (2, NAN), (2, INF), None,
                                          {2, 4}, {2: 3, 4: 5}, (50, 60), ("2", "4"), np.array([[2, 4]]), (True, 4)]),
    ("tl.suggest_n_clusters", "n_runs", [-1]),
    ("tl.suggest_n_clusters", "use_rep", ["gone"]),
    ("tl.suggest_n_clusters", "metric", [""]),
    ("tl.suggest_n_clusters", "key_added", ["", "a/b", "neighbors", "lonely"]),
    ("tl.test_clusters", "key", ["", "gone", "number", "hole", "nothing"]),
    ("tl.test_clusters", "batch_key", ["gone", "hole", 3, {"sample": 1}]),
    ("tl.test_clusters", "use_rep", ["gone"]),
    ("tl.test_clusters", "key_added", ["", "a/b", "sample", "number"]),
    ("tl.cut", "n_clusters", [None, 0, -1, 10**30]),
    ("tl.cut", "key", ["", "gone", "sample", "lonely"]),
    ("tl.cut", "key_added", ["", "a/b", "sample", "vcc"]),
    ("pp.lsa", "n_comps", [0, -1, 6, 7, 10**30]),
    ("pp.lsa", "layer", ["", "gone", "bad", "text"]),
    ("pp.lsa", "key_added", ["", "a/b"]),
    ("pp.neighbors", "batch_key", [None, "", "gone", "hole", [], 3, {"sample": 1}, [["sample"]]]),
    ("pp.neighbors", "n_neighbors", [0, 1, 60]),
    ("pp.neighbors", "metric", ["", "nothing like it"]),
    ("pp.neighbors", "use_rep", ["gone", "X_nan", "table"]),
    ("pp.neighbors", "batch_strength", [-0.1, 1.1]),
    *((f"pl.{name}", "ax", [3, "ax", {}, [1], np.array([1, 2])]) for name in ("vcc", "confusion", "support")),
    *((f"pl.{name}", "key", ["", "gone"]) for name in pl.__all__),
    *((f"pl.{name}", "dimensions", [3, (0,), (0, 2), (0.0, 1.0), (-1, 0), "01", (0, 1, 1), {"a": 1}, None, (True, False)])
      for name in ("stability", "stages", "vcc")),
    *((f"pl.{name}", "size", [-1]) for name in ("stability", "stages", "vcc")),
    ("pl.vcc", "color", ["", "gone", ["gone"], [], 3, {"sample": 1}, {"sample"}, [["sample"]], [1]]),
    ("pl.vcc", "layer", ["", "gone"]),
    ("pl.vcc", "legend_loc", ["", "best", 1, None, ["on data"]]),
    ("pl.vcc", "confidence", ["", "size", 1, True, ["alpha"]]),
    ("pl.vcc", "palette", ["", "gone", 3, [], {}, ["gone"], {"0": "gone"}, {"0"}, [1, 2], True]),
    ("pl.vcc", "cmap", ["", "gone"]),
    ("pl.vcc", "title", [3, ["a", "b"], {"a": 1}, {"a"}, [1]]),
    ("pl.vcc", "ncols", [0, -1]),
    ("pl.stages", "color", ["gone", ["sample"], 3, {"sample"}]),
    ("pl.stages", "ncols", [0, -1]),
    ("pl.confusion", "groupby", ["", "gone", "nothing"]),
    ("pl.confusion", "normalize", ["", "rows", 1, True, ["groups"]]),
    ("pl.confusion", "cmap", ["", "gone"]),
    ("pl.composition", "by", ["", "gone", "number", "nothing"]),
    ("pl.composition", "palette", ["gone", 3, [], {}]),
    ("pl.n_clusters", "runners_up", [-1]),
    ("pl.similarity", "clusters", [3, "01", ("0",), ("0", "0"), ("0", "gone"), ("0", "1", "2"), {"0": 1}, [["0"], ["1"]]]),
    ("pl.similarity", "random_state", ["x", -1, NAN, 1.5]),
    ("metrics.compactness", "embedding", [None, 3, "a", [[NAN, 1]] * 60, np.zeros((59, 2)), np.zeros(60), np.full((60, 2), "a"),
                                          np.full((60, 2), 1j), np.empty((60, 0)), {"a": 1}, np.full((60, 2), DAY)]),
    ("VCC.fit", "graph_mode", ["", "weights", 1, None, ["distance"]]),
    ("VCC.fit", "rows", [[0], [1, 0], [0, 0], [0, 60], [-1, 3], [0.5, 1], "ab", 3, [[0, 1]], {0, 1}, [True, False]]),
    ("VCC.save", "path", [True, 3, None, "", ["a"], "a\0b", b"a", "/gone/model", "/dev/null", "."]),
    ("VCC.save", "extra", [{"a": NAN}, {"a": [NAN]}, {"a": object()}, {"a": np.eye(2) * 1j}, {"a": np.array([NAN])}, {1: 2}]),
    ("VCC.load", "path", [True, 3, None, "", ["a"], "a\0b", b"a", "text.h5ad", "cells.h5ad", ".", "/dev/zero"]),
    ("VCC.load", "device", ["", "gpu", "cuda:99", "xpu", 3, None, ["cpu"]]),
]  # fmt: skip
LISTED = [(function, name, value) for function, name, values in BY_VALUE for value in values]
OTHER_NAMES = {  # an error about the data behind an argument may name the place instead
    "use_rep": r"adata\.obsm\[", "layer": r"adata\.layers\[", "neighbors_key": r"adata\.uns\[", "obsp": r"adata\.obsp\[",
    "key": r"adata|run named", "embedding": "X", "path": "file|cannot be loaded|read-only|a directory", "reference": "cannot be loaded|fitted|file",
    "batch_key": r"adata\.obs", "groupby": r"adata\.obs|column", "by": r"adata\.obs|column", "color": r"adata\.obs",
    "labels": "embedding", "distances": "graph", "save_to": "directory|path", "checkpoint": "path|directory|not a file",
}  # fmt: skip


def shown(value):
    return re.sub(r"\W+", "_", repr(value))[:24]


def check_refused(world, same, everything, function, name, value):
    """The call fails with a documented error that names the argument and comes from here; nothing is changed."""
    call, given = world.calls[function]
    if (
        name in ("path", "save_to", "reference", "checkpoint")
        and isinstance(value, str)
        and value.endswith((".h5ad", "."))
    ):
        value = world.folder / value
    files = sorted(world.folder.iterdir())
    without = {"graph": None} if (function, name) == ("VCC.fit", "batch") else {}  # not used with a graph
    with pytest.raises(DOCUMENTED) as caught:
        call(**{**given, **without, name: value})
    changed = [slot for slot, held in world.before.items() if not same(held, getattr(world.adata, slot))]
    if changed:
        world.before = everything(world.adata)
    assert not changed, f"changed: {changed}"
    assert sorted(world.folder.iterdir()) == files
    text = str(caught.value)
    raised_in = traceback.extract_tb(caught.value.__traceback__)[-1].filename
    assert f"{Path('scvcc')}" in raised_in or "sklearn/utils" in raised_in, f"raised in {raised_in}: {text}"
    assert re.search(rf"\b{name}\b|{OTHER_NAMES.get(name, name)}", text), f"does not name {name}: {text}"
    assert len(text.split()) > 4, text


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [pytest.param(*case, id=f"{case[0]}-{case[1]}-{shown(case[2])}") for case in [*NO_ADATA, *BY_KIND, *LISTED]],
)
def test_a_bad_value_is_refused(world, same, everything, function, name, value):
    check_refused(world, same, everything, function, name, value)


@pytest.mark.parametrize(("function", "name", "key"), OF_DATA)
def test_bad_data_are_refused(world, same, everything, function, name, key):
    check_refused(world, same, everything, function, name, TABLES.get(name, LABELS)[key])


def of_the_process():
    """What all of a process shares and no function is to change."""
    loggers = [logging.getLogger(), logging.getLogger("scvcc"), logging.getLogger("scanpy")]
    return {
        "numpy": np.random.get_state(),  # noqa: NPY002
        "errors": np.geterr(),
        "random": random.getstate(),
        "torch": torch.get_rng_state().tolist(),
        "modes": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()),
        "threads": (torch.get_num_threads(), numba.get_num_threads()),
        "pools": [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()],
        "rc": dict(mpl.rcParams),
        "logging": [(logger.level, list(logger.handlers), logger.disabled) for logger in loggers],
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "signal": signal.getsignal(signal.SIGINT),
        "path": list(sys.path),
    }


def test_the_calls_work_as_they_are_and_change_nothing_of_the_process(world):
    assert world.calls
    for name, (call, given) in world.calls.items():
        if name != "VCC.save":
            before = of_the_process()
            call(**{**given, **({"copy": True} if "copy" in parameters(name) else {})})
            np.testing.assert_equal(of_the_process(), before, err_msg=name)
