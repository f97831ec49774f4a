"""The data sets of `sets.csv`: how they are prepared, and the features and the graph that all methods share.

Files are looked for in the folder given, else in $SCVCC_DATA, else in ../shared/data:

- images and documents, `NAME.npz`: `X` (n, d) and `y`, or the parts of a CSR matrix `data, indices, indptr, shape` and `y`
- cells, `NAME.h5ad`: counts in `X`, labels in `obs`
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.sparse as sp

IMAGES, DOCUMENTS, CELLS = "images", "documents", "cells"
N_NEIGHBORS = {IMAGES: 15, CELLS: 15, DOCUMENTS: 70}  # 70: the paper's choice for Reuters
N_PCS = 50


@dataclass(frozen=True)
class Source:
    """A data set on disk. `truth` is A (independent of the matrix), B (the authors' annotation) or C (a clustering)."""

    name: str
    title: str
    kind: str
    truth: str
    file: str
    labels: str  # array of the file, or column of obs
    rows: str  # name of a boolean array in the file, or nothing
    origin: str


with (Path(__file__).parent / "sets.csv").open(newline="", encoding="utf-8") as _file:
    SETS = {row["name"]: Source(**row) for row in csv.DictReader(_file)}


def data_folder(given: str | None = None) -> Path:
    return Path(given or os.environ.get("SCVCC_DATA") or Path(__file__).parents[2] / "shared" / "data")


def present(names: Iterable[str], folder: Path) -> list[str]:
    """The sets whose file is there; says which are not."""
    found = [name for name in names if (folder / SETS[name].file).exists()]
    for name in names:
        if name not in found:
            print(f"skipped: {SETS[name].file} is not in the data folder; name the folder with --data or SCVCC_DATA")
    return found


@dataclass
class Data:
    """One prepared set. `X` is what networks are given; `features` and `graph` are shared by everything else."""

    X: np.ndarray | sp.csr_matrix
    y: np.ndarray
    kind: str
    counts: sp.csr_matrix | None = None
    shrinkage: np.ndarray | None = (
        None  # how much nearer to the mean rows come that the components were not learnt from
    )
    n_neighbors: int = field(init=False)

    def __post_init__(self) -> None:
        self.n_neighbors = N_NEIGHBORS[self.kind]

    @property
    def n_classes(self) -> int:
        return len(np.unique(self.y))

    @cached_property
    def features(self) -> np.ndarray | sp.csr_matrix:
        """Images: 50 principal components of the pixels. Cells: the 50 components in `X`. Documents: unit TF-IDF rows."""
        from scvcc._training.graph import search_space

        return search_space(self.X, N_PCS, seed=0) if self.kind == IMAGES else self.X

    @cached_property
    def graph(self) -> sp.csr_matrix:
        """Distances to the nearest neighbors, the same number in each row."""
        from scvcc._training.graph import neighbor_distances

        return neighbor_distances(self.features, self.n_neighbors, seed=0)

    @property
    def neighbors(self) -> tuple[np.ndarray, np.ndarray]:
        """The graph as arrays of indices and distances, each point its own first neighbor, nearest first."""
        n = self.graph.shape[0]
        shape = (n, self.n_neighbors)
        indices, distances = self.graph.indices.reshape(shape), self.graph.data.reshape(shape)
        order = np.argsort(distances, axis=1, kind="stable")
        indices, distances = np.take_along_axis(indices, order, 1), np.take_along_axis(distances, order, 1)
        own = np.arange(n)[:, None]
        return np.hstack([own, indices]).astype(np.int32), np.hstack([np.zeros((n, 1)), distances]).astype(np.float32)

    def rows(self, rows: np.ndarray) -> Data:
        counts = None if self.counts is None else self.counts[rows]
        return Data(self.X[rows], self.y[rows], self.kind, counts, self.shrinkage)


def load(name: str, folder: Path, fit_rows: np.ndarray | None = None) -> Data:
    """Read and prepare a set; for cells, everything that is learnt from the data is learnt from `fit_rows` alone."""
    source = SETS[name]
    path = folder / source.file
    if not path.exists():
        raise FileNotFoundError(f"{source.title}: {source.file} is not in the data folder (--data or $SCVCC_DATA).")
    return _load_cells(path, source, fit_rows) if source.kind == CELLS else _load_arrays(path, source)


def _load_arrays(path: Path, source: Source) -> Data:
    with np.load(path, allow_pickle=False) as file:
        y = file[source.labels]
        if "indptr" not in file:
            X = file["X"]
            return Data(X.astype(np.float32) / (255 if X.dtype == np.uint8 else 1), y, source.kind)
        X = sp.csr_matrix((file["data"], file["indices"], file["indptr"]), shape=tuple(file["shape"]))
        keep = np.diff(X.indptr) > 0  # a document without any of the 2,000 stems has no direction
        if source.rows:
            keep &= file[source.rows]
    return Data(X[keep], y[keep], source.kind)


def _load_cells(path: Path, source: Source, fit_rows: np.ndarray | None) -> Data:
    """The usual preparation: normalized, log1p, at most 2,000 variable genes, scaled, 50 principal components."""
    import anndata as ad
    import scanpy as sc
    from sklearn.decomposition import PCA

    from scvcc._clusters.novelty import expected_shrinkage

    adata = ad.read_h5ad(path)
    adata = adata[adata.obs[source.labels].notna().to_numpy()].copy()
    fit_rows = np.arange(adata.n_obs) if fit_rows is None else fit_rows
    seen = np.asarray((adata.X[fit_rows] > 0).sum(axis=0)).ravel() >= 3
    adata = adata[:, seen].copy()
    counts = adata.X.copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    if adata.n_vars > 2500:
        variable = sc.pp.highly_variable_genes(adata[fit_rows], n_top_genes=2000, inplace=False)["highly_variable"]
        adata, counts = adata[:, variable.to_numpy()], counts[:, variable.to_numpy()]
    X = adata.X.toarray()
    mean, sd = X[fit_rows].mean(axis=0), X[fit_rows].std(axis=0, ddof=1)
    X = np.clip((X - mean) / np.where(sd > 0, sd, 1), -10, 10)
    pca = PCA(N_PCS, svd_solver="arpack", random_state=0).fit(X[fit_rows])
    y = np.unique(adata.obs[source.labels].astype(str), return_inverse=True)[1]
    variance, ratio = pca.explained_variance_, pca.explained_variance_ratio_
    shrinkage = expected_shrinkage(variance, variance[0] / ratio[0], len(fit_rows), X.shape[1])
    return Data(pca.transform(X).astype(np.float32), y, source.kind, counts.tocsr(), shrinkage)
