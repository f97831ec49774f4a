"""`VCC`, the scikit-learn estimator: validation, fitting, and the use of a fitted model."""

from __future__ import annotations

import contextlib
import logging
import numbers
import warnings
from typing import TYPE_CHECKING, Any, Literal, Self

import numba
import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from scvcc import _graph, _labels, _persist
from scvcc._encoder import Rows, encode
from scvcc._settings import Settings, resolve_weights
from scvcc._train import train

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from scvcc._graph import GraphMode, Matrix

logger = logging.getLogger(__name__)


class VCC(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, BaseEstimator):
    """Very Compact Clusters: a map, labels, confidence, and an encoder that places and labels new points.

    A neighbor graph of the data is laid out so that connected points contract and unconnected ones part, clusters are
    chosen by how well they fit the graph, and a neural network learns to reproduce the map from the input :cite:p:`vcc`.

    Parameters
    ----------
    n_clusters
        Number of clusters. None estimates it, up to 40. On very small data fewer may come out; a warning then says so.
    latent_dim
        Dimensions of the embedding.
    n_neighbors
        Neighbors of each row in the graph. About 15 for cells and images; 50 to 100 for sparse documents.
    metric
        Distance for the neighbor search: "euclidean", "cosine", or another name that pynndescent and scikit-learn
        share.
    n_pcs
        Where `X` has more features than this, the neighbor search uses that many principal components (for sparse
        `X`, truncated SVD). None searches `X` itself. The encoder always sees `X`.
    hidden
        Sizes of the encoder's hidden layers.
    objective
        "compact": the recipe of this package. "paper": the paper's objective, end to end with SGD; for comparison.
    loss_weights
        Weights that replace the objective's own, by name: "boundary", "contraction", "expansion", "clustering".
        0 switches a loss off.
    epochs
        Epochs of end-to-end training. None: 4 for "compact", 20 for "paper". 0 skips the joint stage of "compact".
    batch_size
        Rows in a mini-batch of the encoder.
    learning_rate
        Of the encoder.
    keep_stages
        Keep the embedding at three points of training in `stages_`: at the start, with the clusters placed, and the
        coordinates that the encoder learns.
    device
        "auto" takes a CUDA GPU if there is one and the CPU otherwise; or any torch device, such as "mps".
    n_jobs
        Threads. None leaves the settings of numba and torch as they are.
    random_state
        Seed or generator. The same seed on the same machine gives the same result. None draws a seed.
    progress
        Show a progress bar.

    Attributes
    ----------
    labels_ : ndarray of shape (n,)
        Cluster of each row, numbered by decreasing size.
    embedding_ : ndarray of shape (n, latent_dim)
        The map.
    cluster_centers_ : ndarray of shape (n_clusters_, latent_dim)
        Centers on the map.
    n_clusters_ : int
        Number of clusters.
    graph_ : csr_matrix of shape (n, n)
        The latent graph.
    history_ : dict of ndarray
        Losses, β and the share of labels that changed, with the stage and step they belong to.
    stages_ : dict of ndarray
        Only with `keep_stages`.
    n_features_in_ : int
        Number of features of `X`.
    device_ : str
        Where the encoder was trained.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> import scvcc
    >>> X = load_iris().data
    >>> model = scvcc.VCC(n_clusters=3, hidden=(64,)).fit(X)
    >>> model.embedding_.shape
    (150, 2)
    >>> bool((model.predict(X) == model.labels_).all())
    True
    """

    stages_: dict[str, np.ndarray]

    def __init__(
        self,
        n_clusters: int | None = None,
        *,
        latent_dim: int = 2,
        n_neighbors: int = 15,
        metric: str = "euclidean",
        n_pcs: int | None = 50,
        hidden: Sequence[int] = (500, 500, 2000),
        objective: Literal["compact", "paper"] = "compact",
        loss_weights: Mapping[str, float] | None = None,
        epochs: int | None = None,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        keep_stages: bool = False,
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: int | np.random.Generator | np.random.RandomState | None = 0,
        progress: bool = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.latent_dim = latent_dim
        self.n_neighbors = n_neighbors
        self.metric = metric
        self.n_pcs = n_pcs
        self.hidden = hidden
        self.objective = objective
        self.loss_weights = loss_weights
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.keep_stages = keep_stages
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.progress = progress

    def fit(
        self, X: Matrix, y: None = None, *, graph: Matrix | None = None, graph_mode: GraphMode = "distance"
    ) -> Self:
        """Build the latent graph, train the encoder and label the rows of `X`.

        Parameters
        ----------
        X
            Dense or sparse, (n, d). Sparse rows become dense one mini-batch at a time.
        y
            Not used.
        graph
            Neighbors of the rows of `X`, sparse (n, n), instead of a search.
        graph_mode
            What `graph` holds: neighbor distances ("distance") or weights that grow with closeness ("connectivity").

        Returns
        -------
        The fitted estimator.
        """
        X = self._validated(X, reset=True)
        settings = self._settings(X.shape[0])
        device = resolve_device(self.device)
        seed = _as_seed(self.random_state)
        with _threads(self.n_jobs):
            latent = self._latent_graph(X, graph, graph_mode, seed)
            trained = train(X, latent, settings, device=device, seed=seed, progress=self.progress)
            rng = np.random.default_rng(seed)
            labels = _labels.nearest_center(trained.H, trained.centers)
            order = _labels.by_size(labels, len(trained.centers))
            labels = np.argsort(order)[labels]
            centers = trained.centers[order]
            sharpness = _labels.calibrate_sharpness(trained.H, centers, labels, latent, rng)
        if self.n_clusters is not None and len(centers) < self.n_clusters:
            warnings.warn(
                f"n_clusters={self.n_clusters}, but only {len(centers)} clusters have points: "
                "the encoder cannot tell the others apart. Ask for fewer clusters or give it larger hidden layers.",
                UserWarning,
                stacklevel=2,
            )

        self.encoder_, self.device_ = trained.encoder, str(device)
        self.graph_, self.history_ = latent, trained.history
        self.embedding_, self.labels_ = trained.H, labels
        self.cluster_centers_, self.n_clusters_, self.sharpness_ = centers, len(centers), sharpness
        if hasattr(self, "stages_"):
            del self.stages_  # of an earlier fit
        if self.keep_stages:
            self.stages_ = {name: H.astype(np.float32) for name, H in trained.stages.items()}
        return self

    def fit_transform(self, X: Matrix, y: None = None, **fit_params: Any) -> np.ndarray:
        """Fit and return the embedding."""
        return self.fit(X, y, **fit_params).embedding_

    def transform(self, X: Matrix) -> np.ndarray:
        """Place rows on the map with the encoder; they may be new.

        Parameters
        ----------
        X
            Dense or sparse, with the features of the training data.

        Returns
        -------
        Embedding (n, latent_dim).
        """
        check_is_fitted(self)
        X = self._validated(X, reset=False)
        device = next(self.encoder_.parameters()).device
        with _threads(self.n_jobs):
            return encode(self.encoder_, Rows(X, device)).cpu().numpy()

    def predict(self, X: Matrix) -> np.ndarray:
        """Label rows by the nearest center on the map.

        Parameters
        ----------
        X
            Dense or sparse, with the features of the training data.

        Returns
        -------
        Labels (n,).
        """
        return _labels.nearest_center(self.transform(X), self.cluster_centers_)

    def predict_proba(self, X: Matrix) -> np.ndarray:
        """Probability of each cluster: the soft assignment, sharpened so that it predicts the labels of neighbors.

        Parameters
        ----------
        X
            Dense or sparse, with the features of the training data.

        Returns
        -------
        Probabilities (n, n_clusters_).
        """
        return _labels.assignment_probabilities(self.transform(X), self.cluster_centers_, self.sharpness_)

    def save(self, path: str | os.PathLike[str], *, extra: Mapping[str, Any] | None = None) -> None:
        """Write the model to one file, completely or not at all; the graph, history and stages stay behind.

        Parameters
        ----------
        path
            File to write, in the safetensors format. An old one is replaced.
        extra
            Further arrays (float32, float64, int64, uint8 or strings) and values (numbers, strings, lists) to keep in
            the file; `extra_` of the loaded model.
        """
        check_is_fitted(self)
        _persist.save_model(self, path, extra)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "auto") -> Self:
        """Read a model written by `save`; no code in the file is run.

        Parameters
        ----------
        path
            File to read. A file that is damaged or holds something else raises a ValueError.
        device
            Where to put the encoder, which may be another device than the one it was trained on.

        Returns
        -------
        A model that transforms and predicts as the saved one does.
        """
        return _persist.load_model(cls, path, resolve_device(device))

    @property
    def proba_(self) -> np.ndarray:
        """Probabilities of the training rows, (n, n_clusters_); computed when asked for."""
        check_is_fitted(self)
        return _labels.assignment_probabilities(self.embedding_, self.cluster_centers_, self.sharpness_)

    @property
    def _n_features_out(self) -> int:
        return self.cluster_centers_.shape[1]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _validated(self, X: Matrix, *, reset: bool) -> Matrix:
        """`X` as float32 or float64, finite, dense or CSR; float64 is narrowed by the encoder, batch by batch."""
        return validate_data(
            self,
            X,
            reset=reset,
            accept_sparse="csr",
            accept_large_sparse=True,
            dtype=[np.float32, np.float64],
            ensure_min_samples=2 if reset else 1,
        )

    def _settings(self, n: int) -> Settings:
        """The user's choices, checked."""
        if self.n_clusters is not None:
            _check_integer("n_clusters", self.n_clusters, low=2, high=n, why=f"there are {n} rows")
        _check_integer("latent_dim", self.latent_dim, low=1)
        _check_integer("n_neighbors", self.n_neighbors, low=1)
        _check_integer("batch_size", self.batch_size, low=1)
        if self.n_pcs is not None:
            _check_integer("n_pcs", self.n_pcs, low=1)
        if self.epochs is not None:
            _check_integer("epochs", self.epochs, low=1 if self.objective == "paper" else 0)
        if not isinstance(self.hidden, list | tuple | np.ndarray):
            raise TypeError(f"hidden must be a sequence of layer sizes, such as (500, 500), found {self.hidden!r}.")
        for size in self.hidden:
            _check_integer("hidden", size, low=1)
        if not isinstance(self.learning_rate, numbers.Real) or not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be a number above 0, found {self.learning_rate!r}.")
        if self.n_jobs is not None and self.n_jobs != -1:
            _check_integer("n_jobs", self.n_jobs, low=1)
        return Settings(
            n_clusters=self.n_clusters,
            latent_dim=self.latent_dim,
            hidden=tuple(self.hidden),
            objective=self.objective,
            weights=resolve_weights(self.objective, self.loss_weights),
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            keep_stages=self.keep_stages,
        )

    def _latent_graph(self, X: Matrix, graph: Matrix | None, mode: GraphMode, seed: int) -> sp.csr_matrix:
        if graph is None:
            Z = _graph.search_space(X, self.n_pcs, seed=seed)
            distances = _graph.neighbor_distances(
                Z, self.n_neighbors, metric=self.metric, seed=seed, n_jobs=self.n_jobs
            )
            return _graph.latent_graph(distances)
        checked = _graph.check_graph(graph, X.shape[0], mode)
        return _graph.latent_graph(checked) if mode == "distance" else _graph.symmetric_weights(checked)


def resolve_device(device: str) -> torch.device:
    """The torch device that `device` asks for; "auto" is CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r} is not a torch device: use 'auto', 'cpu', 'cuda' or 'mps'.") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}, but torch finds no CUDA GPU: use device='auto' or 'cpu'.")
    if resolved.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device={device!r}, but torch finds no Apple GPU: use device='auto' or 'cpu'.")
    if resolved.type == "meta":
        raise ValueError("device='meta' holds no data: use 'auto', 'cpu', 'cuda' or 'mps'.")
    return resolved


def _check_integer(name: str, value: Any, *, low: int, high: int | None = None, why: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, found {value!r} of type {type(value).__name__}.")
    if int(value) < low or (high is not None and int(value) > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high} ({why})"
        raise ValueError(f"{name} must be {limits}, found {value}.")


def _as_seed(random_state: Any) -> int:
    """One integer from what scikit-learn and numpy users pass; drawing it is all that happens to a generator."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    _check_integer("random_state", random_state, low=0, high=2**32 - 1, why="a numpy seed")
    return int(random_state)


@contextlib.contextmanager
def _threads(n_jobs: int | None) -> Iterator[None]:
    """Use `n_jobs` threads in numba and torch, and put the old numbers back."""
    before = numba.get_num_threads(), torch.get_num_threads()
    if n_jobs is not None:
        limit = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
        wanted = limit if n_jobs == -1 else n_jobs
        numba.set_num_threads(min(wanted, limit))
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        numba.set_num_threads(before[0])
        torch.set_num_threads(before[1])
