"""The methods compared: each takes a prepared set, the number of clusters (None: unknown) and a seed, and returns labels.

Points that a method calls noise keep the label -1 and are scored as one cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from .data import CELLS, DOCUMENTS, IMAGES, Data
from .process import Clock

Found = Iterator[tuple[str, bool, np.ndarray, dict[str, float]]]  # method, whether K was given, labels, seconds
ALL = (IMAGES, DOCUMENTS, CELLS)
VCC_OPTIONS: dict[str, dict[str, Any]] = {DOCUMENTS: {"n_neighbors": 71, "metric": "cosine", "n_pcs": None}}
# Passes over the data of each of the two phases of ClustPy's methods (its defaults: 100 and 150), and of scVI (400): as many as
# this number of steps allows, within the limits. A run on 10,000 rows then takes some minutes on one core.
DEEP_STEPS, DEEP_EPOCHS, DEEP_BATCH = 1000, (10, 50), 256
SCVI_STEPS, SCVI_EPOCHS, SCVI_BATCH = 3000, (25, 400), 128
LANDMARKS, LANDMARK_NEIGHBORS = 1000, 5


def kmeans(data: Data, k: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    return KMeans(k, n_init=10, random_state=seed).fit_predict(data.features)


def dbscan(data: Data, k: None, seed: int) -> np.ndarray:
    """The radius is the knee of the sorted distances to the last neighbor: the point farthest below the chord."""
    from sklearn.cluster import DBSCAN

    radius = np.sort(data.neighbors[1][:, -1])
    height = (radius - radius[0]) / (radius[-1] - radius[0])
    knee = np.argmax(np.linspace(0, 1, len(radius)) - height)
    return DBSCAN(eps=radius[knee], min_samples=data.n_neighbors + 1).fit_predict(data.features)


def density_peaks(data: Data, k: int, seed: int) -> np.ndarray:
    """Rodriguez & Laio (2014), Gaussian density at the 2 % quantile of distances, the k largest density × separation."""
    from sklearn.metrics import pairwise_distances, pairwise_distances_chunked

    Z, n = data.features, data.features.shape[0]
    sample = np.random.default_rng(seed).choice(n, min(n, 2000), replace=False)
    cutoff = np.quantile(pairwise_distances(Z[sample])[np.triu_indices(len(sample), 1)], 0.02)
    density = np.concatenate([np.exp(-((D / cutoff) ** 2)).sum(axis=1) for D in pairwise_distances_chunked(Z)])
    order = np.argsort(-density, kind="stable")
    Z, density = Z[order], density[order]
    separation, leader = np.zeros(n), np.zeros(n, dtype=int)  # distance to the nearest denser point, and which
    for start in range(0, n, 1000):
        stop = min(start + 1000, n)
        D = pairwise_distances(Z[start:stop], Z[:stop])
        D[np.arange(stop)[None, :] >= np.arange(start, stop)[:, None]] = np.inf
        leader[start:stop], separation[start:stop] = D.argmin(axis=1), D.min(axis=1)
    separation[0] = separation[1:].max()
    labels = np.full(n, -1)
    labels[np.argsort(-density * separation, kind="stable")[:k]] = np.arange(k)
    labels[0] = max(labels[0], 0)
    for i in range(1, n):
        if labels[i] < 0:
            labels[i] = labels[leader[i]]
    return labels[np.argsort(order)]


def spectral(data: Data, k: int, seed: int) -> np.ndarray:
    from sklearn.cluster import SpectralClustering

    cut = SpectralClustering(k, affinity="precomputed", assign_labels="kmeans", random_state=seed)
    return cut.fit_predict(_connectivities(data, seed))


def landmark_spectral(data: Data, k: int, seed: int) -> np.ndarray:
    """Chen & Cai (2011): each point as weights over its 5 nearest of n / 10 (at most 1,000) landmarks, then SVD."""
    from scipy.sparse.linalg import svds
    from sklearn.cluster import KMeans
    from sklearn.neighbors import NearestNeighbors

    Z, n = data.features, data.features.shape[0]
    count = min(LANDMARKS, n // 10)
    landmarks = KMeans(count, init="random", n_init=1, max_iter=10, random_state=seed).fit(Z).cluster_centers_
    distances, indices = (
        NearestNeighbors(n_neighbors=LANDMARK_NEIGHBORS, algorithm="brute").fit(landmarks).kneighbors(Z)
    )
    weights = np.exp(-(distances**2) / (2 * np.mean(distances) ** 2))
    weights /= weights.sum(axis=1, keepdims=True)
    rows = np.repeat(np.arange(n), LANDMARK_NEIGHBORS)
    W = sp.csr_matrix((weights.ravel(), (rows, indices.ravel())), shape=(n, count))
    W = W @ sp.diags_array(1 / np.sqrt(np.maximum(np.asarray(W.sum(axis=0)).ravel(), 1e-12)))
    start = np.random.default_rng(seed).normal(size=min(W.shape))
    vectors = svds(W, k=k, v0=start)[0]
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return KMeans(k, n_init=10, random_state=seed).fit_predict(vectors)


def leiden(
    data: Data, k: int | None, seed: int, weights: sp.csr_matrix | None = None, *, resolution: float = 1.0
) -> np.ndarray:
    """One resolution, or for a given k the resolution that a bisection finds to give k clusters, or the nearest to it.

    `weights` replace those of the shared graph.
    """
    import anndata as ad
    import scanpy as sc

    W = _connectivities(data, seed) if weights is None else weights
    adata = ad.AnnData(sp.csr_matrix((W.shape[0], 1), dtype=np.float32))

    def labels_at(resolution: float) -> np.ndarray:
        sc.tl.leiden(adata, resolution, adjacency=W, flavor="igraph", n_iterations=2, directed=False, random_state=seed)
        return adata.obs["leiden"].astype(int).to_numpy()

    if k is None:
        return labels_at(resolution)
    low, high, best = 1e-3, 20.0, None
    for _ in range(20):
        middle = float(np.sqrt(low * high))
        labels = labels_at(middle)
        found = len(np.unique(labels))
        if best is None or abs(found - k) < abs(len(np.unique(best)) - k):
            best = labels
        if found == k:
            break
        low, high = (middle, high) if found < k else (low, middle)
    return best


def umap_kmeans(data: Data, k: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    return KMeans(k, n_init=10, random_state=seed).fit_predict(_umap(data, seed))


def umap_gmm(data: Data, k: int, seed: int) -> np.ndarray:
    from sklearn.mixture import GaussianMixture

    return GaussianMixture(k, n_init=5, random_state=seed).fit_predict(_umap(data, seed).astype(np.float64))


def umap_hdbscan(data: Data, k: None, seed: int) -> np.ndarray:
    from sklearn.cluster import HDBSCAN

    smallest = max(15, len(data.y) // 200)
    return HDBSCAN(min_cluster_size=smallest, copy=True).fit_predict(_umap(data, seed))


def clustpy_methods(data: Data, k: int, seed: int) -> Found:
    """Three deep methods of ClustPy on the input itself, divided by its standard deviation, from one autoencoder.

    N2D is UMAP of the code and a Gaussian mixture (McConville et al. 2021).
    """
    _allow_torchvision()
    import umap
    from clustpy.deep import DEC, IDEC, N2D
    from clustpy.deep.neural_networks import FeedforwardAutoencoder

    clock = Clock()
    X = data.X.toarray() if sp.issparse(data.X) else data.X
    X = np.ascontiguousarray(X / X.std(), dtype=np.float32)
    epochs = _epochs(len(X), DEEP_BATCH, DEEP_STEPS, DEEP_EPOCHS)
    layers = [X.shape[1], 500, 500, 2000, 10]
    network = FeedforwardAutoencoder(layers, random_state=seed)
    network.fit(epochs, {"lr": 1e-3}, DEEP_BATCH, data=X)
    shared = {"neural_network": network, "batch_size": DEEP_BATCH, "random_state": seed, "device": "cpu"}
    manifold = {"n_neighbors": 20, "min_dist": 0.0, "n_components": k, "random_state": seed}
    models = {
        "n2d": N2D(k, manifold_class=umap.UMAP, manifold_params=manifold, **shared),
        "dec": DEC(k, clustering_epochs=epochs, **shared),
        "idec": IDEC(k, clustering_epochs=epochs, **shared),
    }
    spent = clock.read()
    for name, model in models.items():
        own = Clock(spent)
        yield name, True, model.fit(X).labels_, own.read()


def scvi_methods(data: Data, k: int, seed: int) -> Found:
    """Leiden, with and without K, on the latent space that scVI learns from the counts of the same genes."""
    clock = Clock()
    latent = Data(scvi_latent(data, seed), data.y, data.kind)
    spent = clock.read()
    for known in (True, False):
        own = Clock(spent)
        yield "scvi_leiden", known, leiden(latent, k if known else None, seed), own.read()


def scvi_latent(data: Data, seed: int, batch: np.ndarray | None = None) -> np.ndarray:
    """What scVI learns from the counts, with the batches if there are some."""
    _allow_torchvision()
    import anndata as ad
    import scvi

    scvi.settings.seed = seed
    adata = ad.AnnData(data.counts)
    if batch is not None:
        adata.obs["batch"] = batch.astype(str)
    scvi.model.SCVI.setup_anndata(adata, batch_key=None if batch is None else "batch")
    model = scvi.model.SCVI(adata)
    epochs = _epochs(len(data.y), SCVI_BATCH, SCVI_STEPS, SCVI_EPOCHS)
    quiet = {"enable_progress_bar": False, "logger": False}
    model.train(epochs, accelerator="cpu", batch_size=SCVI_BATCH, early_stopping=True, **quiet)
    return model.get_latent_representation()


def _epochs(n: int, batch_size: int, steps: int, limits: tuple[int, int]) -> int:
    """Passes over `n` rows that take about `steps` steps, within limits."""
    return int(np.clip(steps // -(-n // batch_size), *limits))


def fit_vcc(data: Data, k: int | None, seed: int, batch: np.ndarray | None = None, **options: Any) -> Any:
    from scvcc import VCC

    return VCC(k, random_state=seed, **(VCC_OPTIONS.get(data.kind, {}) | options)).fit(data.X, batch=batch)


def vcc(data: Data, k: int | None, seed: int, **options: Any) -> np.ndarray:
    return fit_vcc(data, k, seed, **options).labels_


@dataclass(frozen=True)
class Method:
    title: str
    run: Callable[..., np.ndarray] | None = None
    family: Callable[[Data, int, int], Found] | None = None  # instead of `run`: methods that share their training
    takes_k: tuple[bool, ...] = (True,)  # is K given? Both where the method can do either
    kinds: tuple[str, ...] = ALL
    seeds: int = 3
    warm_up: bool = True  # compiles on first use


METHODS = {
    "kmeans": Method("k-means", kmeans),
    "dbscan": Method("DBSCAN", dbscan, takes_k=(False,)),
    "density_peaks": Method("density peaks", density_peaks),
    "spectral": Method("spectral clustering (N-Cut)", spectral),
    "landmark_spectral": Method("landmark spectral (SC-LS)", landmark_spectral),
    "leiden": Method("Leiden", leiden, takes_k=(True, False)),
    "umap_kmeans": Method("UMAP + k-means", umap_kmeans),
    "umap_gmm": Method("UMAP + Gaussian mixture", umap_gmm),
    "umap_hdbscan": Method("UMAP + HDBSCAN", umap_hdbscan, takes_k=(False,)),
    "n2d": Method("N2D", family=clustpy_methods, warm_up=False),
    "dec": Method("DEC", family=clustpy_methods, warm_up=False),
    "idec": Method("IDEC", family=clustpy_methods, warm_up=False),
    "scvi_leiden": Method("scVI + Leiden", family=scvi_methods, takes_k=(True, False), kinds=(CELLS,), warm_up=False),
    "vcc": Method("VCC (scvcc)", vcc, takes_k=(True, False), seeds=5),
}


def _connectivities(data: Data, seed: int) -> sp.csr_matrix:
    """The shared graph with UMAP's weights, as scanpy uses it for Leiden."""
    from umap.umap_ import fuzzy_simplicial_set

    indices, distances = data.neighbors
    X, rng = np.empty((len(indices), 1), dtype=np.float32), np.random.RandomState(seed)
    options = {"knn_indices": indices, "knn_dists": distances}
    return fuzzy_simplicial_set(X, data.n_neighbors + 1, rng, "euclidean", **options)[0].tocsr()


def _umap(data: Data, seed: int) -> np.ndarray:
    """Two dimensions on the shared graph, with the `min_dist` that UMAP's guide recommends for clustering."""
    import umap

    return umap.UMAP(
        n_neighbors=data.n_neighbors + 1,
        min_dist=0.0,
        precomputed_knn=data.neighbors,
        force_approximation_algorithm=True,
        random_state=seed,
        n_jobs=1,
    ).fit_transform(data.features)


def _allow_torchvision() -> None:
    """Declare the two operators that torchvision lacks when it was built for GPUs and torch was not.

    ClustPy and Lightning import torchvision; none of what runs here calls these operators.
    """
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
