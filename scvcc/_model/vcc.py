"""`VCC`, the scikit-learn estimator: validation, fitting, and the use of a fitted model."""

from __future__ import annotations

import logging
import numbers
import warnings
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from scvcc._clusters import assignment as _assignment
from scvcc._clusters import novelty as _novelty
from scvcc._model import files as _persist
from scvcc._model.rows import has_row_blocks, in_memory, over_blocks, take_rows
from scvcc._model.sketch import sketch
from scvcc._training import graph as _graph
from scvcc._training.encoder import Rows, encode, encode_with_features
from scvcc._training.recipe import train
from scvcc._training.settings import Settings, resolve_weights
from scvcc._training.threads import threads

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from scvcc._training.encoder import Encoder
    from scvcc._training.graph import GraphMode, Matrix

logger = logging.getLogger(__name__)

SAMPLE = 2_000  # training rows kept for novelty
VALUES: dict[str, Any] = {"accept_sparse": "csr", "accept_large_sparse": True, "dtype": [np.float32, np.float64]}
"""What scikit-learn makes of a matrix for the encoder and the search."""


class VCC(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, BaseEstimator):
    """Very Compact Clusters: a map, labels, confidence, and an encoder that places and labels new points.

    A neighbor graph of the data is laid out so that connected points contract and unconnected ones part, clusters are
    chosen by how well they fit the graph, and a neural network learns to reproduce the map from the input :cite:p:`vcc`.

    Parameters
    ----------
    n_clusters
        Number of clusters. None estimates it, up to 40. On very small data fewer may come out; a warning then says so.
    min_cluster_size
        Where the number of clusters is estimated, none of them has fewer rows than this (or than half of all rows).
        With a given `n_clusters` it does nothing: so many clusters are made, however small.
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
        Epochs of end-to-end training. None: 80 steps, at most 4 epochs, for "compact"; 20 epochs for "paper". 0 skips
        the joint stage of "compact".
    batch_size
        Rows in a mini-batch of the encoder.
    learning_rate
        Of the encoder.
    keep_stages
        Keep the embedding at three points of training in `stages_`: at the start, with the clusters placed, and the
        coordinates that the encoder learns.
    device
        "auto" takes a CUDA GPU if there is one and the CPU otherwise; or any torch device, such as "mps".
    max_train_cells
        Where `X` has more rows and no graph is given, train on a sketch of this many, which draws sparse regions of the
        data more often than dense ones; then place and label all rows. None trains on all. See :doc:`/howto/large_data`.
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
    trained_rows_ : ndarray of shape (m,)
        Numbers of the rows that were trained on, ascending: all of them, or the sketch.
    graph_ : csr_matrix of shape (m, m)
        The latent graph of the rows that were trained on.
    history_ : dict of ndarray
        Losses, β and the share of labels that changed, with the stage and step they belong to.
    stages_ : dict of ndarray
        Only with `keep_stages`: (m, latent_dim), of the rows that were trained on.
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
        min_cluster_size: int = 10,
        latent_dim: int = 2,
        n_neighbors: int = 15,
        metric: str = "euclidean",
        n_pcs: int | None = 50,
        hidden: Sequence[int] = (500, 500, 500),
        objective: Literal["compact", "paper"] = "compact",
        loss_weights: Mapping[str, float] | None = None,
        epochs: int | None = None,
        batch_size: int = 256,
        learning_rate: float = 2e-3,
        keep_stages: bool = False,
        device: str = "auto",
        max_train_cells: int | None = 100_000,
        n_jobs: int | None = None,
        random_state: int | np.random.Generator | np.random.RandomState | None = 0,
        progress: bool = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.min_cluster_size = min_cluster_size
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
        self.max_train_cells = max_train_cells
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

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> import scvcc
        >>> X = load_iris().data
        >>> scvcc.VCC(n_clusters=3, hidden=(16,)).fit(X).n_clusters_
        3

        With a graph of your own:

        >>> from sklearn.neighbors import kneighbors_graph
        >>> graph = kneighbors_graph(X, 10, mode="distance")
        >>> scvcc.VCC(n_clusters=3, hidden=(16,)).fit(X, graph=graph).graph_.shape
        (150, 150)
        """
        X = self._readable(X, reset=True)
        self._settings(X.shape[0])
        resolve_device(self.device)
        seed = _as_seed(self.random_state)
        if graph is not None:
            return self._fit_rows(X, None, self._values(X, None), graph, graph_mode, seed)
        return self._fit_rows(X, *self._search(X, seed), "distance", seed)

    def _fit_rows(
        self, X: Matrix, rows: np.ndarray | None, part: Matrix, graph: Matrix, mode: GraphMode, seed: int
    ) -> Self:
        """Train on `part`, the rows of `X` with numbers `rows` (None: all), and its graph; place and label all rows."""
        settings, device = self._settings(X.shape[0]), resolve_device(self.device)
        with threads(self.n_jobs):
            latent = _graph.given_graph(graph, part.shape[0], mode)
            trained = train(part, latent, settings, device=device, seed=seed, progress=self.progress)
            rng = np.random.default_rng(seed)
            H = trained.H if rows is None else self._embed(X, trained.encoder)
            centers = trained.centers
            if self.n_clusters is None:
                centers = _assignment.drop_small_clusters(H, centers, settings.min_cluster_size)
            labels = over_blocks(lambda block: _assignment.nearest_center(block, centers), H)
            order = _assignment.by_size(labels, len(centers))
            labels = np.argsort(order)[labels]
            centers = centers[order]
            trained_labels = labels if rows is None else labels[rows]
            sharpness = _assignment.calibrate_sharpness(trained.H, centers, trained_labels, latent, rng)
            sampled = Rows(self._sample(X, part, rows, rng), device)
            chosen = np.sort(rng.choice(len(sampled), min(SAMPLE, len(sampled)), replace=False))
            projection = _novelty.projection(trained.encoder.head.in_features, rng)
            Z = encode_with_features(trained.encoder, sampled, projection, chosen)[1]
            sample = _novelty.take_sample(Z, projection)
        if self.n_clusters is not None and len(centers) < self.n_clusters:
            warnings.warn(
                f"n_clusters={self.n_clusters}, but only {len(centers)} clusters have points: "
                "the encoder cannot tell the others apart, most often because groups of rows lie far from each other. "
                "Ask for fewer clusters, or divide a group on its own (restrict_to of scvcc.tl.vcc).",
                UserWarning,
                stacklevel=3,
            )

        self.encoder_, self.device_ = trained.encoder, str(device)
        self.graph_, self.history_ = latent, trained.history
        self.trained_rows_ = np.arange(X.shape[0]) if rows is None else rows
        self.embedding_, self.labels_ = H, labels
        self.cluster_centers_, self.n_clusters_, self.sharpness_ = centers, len(centers), sharpness
        self.sample_ = sample
        for name in ("stages_", "extra_"):  # of an earlier fit, or of the file that the model was loaded from
            if hasattr(self, name):
                delattr(self, name)
        if self.keep_stages:
            self.stages_ = {name: H.astype(np.float32) for name, H in trained.stages.items()}
        return self

    def _search(self, X: Matrix, seed: int) -> tuple[np.ndarray | None, Matrix, sp.csr_matrix]:
        """Numbers of the rows to train on (None: all), these rows, and the distances to their neighbors among them."""
        n, most = X.shape[0], self.max_train_cells
        with threads(self.n_jobs):
            rows = None
            if most is not None and n > most:
                rows = sketch(X, most, metric=self.metric, seed=seed, checked=self._checked)
                logger.info("%d rows, more than max_train_cells=%d: training on a sketch of them.", n, most)
            part = self._values(X, rows)
            Z = _graph.search_space(part, self.n_pcs, seed=seed)
            distances = _graph.neighbor_distances(
                Z, self.n_neighbors, metric=self.metric, seed=seed, n_jobs=self.n_jobs
            )
        return rows, part, distances

    def _sample(self, X: Matrix, part: Matrix, rows: np.ndarray | None, rng: np.random.Generator) -> Matrix:
        """Rows that stand for all, which those of a sketch do not."""
        if rows is None:
            return part
        return self._values(X, np.sort(rng.choice(X.shape[0], min(SAMPLE, X.shape[0]), replace=False)))

    def fit_transform(self, X: Matrix, y: None = None, **fit_params: Any) -> np.ndarray:
        """Fit and return the embedding.

        Parameters
        ----------
        X
            Dense or sparse, (n, d).
        y
            Not used.
        **fit_params
            `graph` and `graph_mode` of `fit`.

        Returns
        -------
        Embedding (n, latent_dim).

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> import scvcc
        >>> scvcc.VCC(n_clusters=3, hidden=(16,)).fit_transform(load_iris().data).shape
        (150, 2)
        """
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

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> import scvcc
        >>> X = load_iris().data
        >>> model = scvcc.VCC(n_clusters=3, hidden=(16,)).fit(X)
        >>> model.transform(X[:4]).shape
        (4, 2)
        """
        check_is_fitted(self)
        X = self._readable(X, reset=False)
        with threads(self.n_jobs):
            return self._embed(X, self.encoder_)

    def _embed(
        self, X: Matrix, encoder: Encoder, finish: Callable[[np.ndarray], np.ndarray] = lambda H: H
    ) -> np.ndarray:
        """What `finish` makes of the embedding of each block of rows; blocks are read and checked one by one."""
        device = encoder.center.device
        return over_blocks(lambda block: finish(encode(encoder, Rows(self._checked(block), device)).cpu().numpy()), X)

    def predict(self, X: Matrix) -> np.ndarray:
        """Label rows by the nearest center on the map.

        Parameters
        ----------
        X
            Dense or sparse, with the features of the training data.

        Returns
        -------
        Labels (n,).

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> import scvcc
        >>> X = load_iris().data
        >>> model = scvcc.VCC(n_clusters=3, hidden=(16,)).fit(X)
        >>> bool((model.predict(X[:4]) == model.labels_[:4]).all())
        True
        """
        check_is_fitted(self)
        X = self._readable(X, reset=False)
        with threads(self.n_jobs):
            return self._embed(X, self.encoder_, lambda H: _assignment.nearest_center(H, self.cluster_centers_))

    def predict_proba(self, X: Matrix) -> np.ndarray:
        """Probability of each cluster: the soft assignment, sharpened so that it predicts the labels of neighbors.

        Parameters
        ----------
        X
            Dense or sparse, with the features of the training data.

        Returns
        -------
        Probabilities (n, n_clusters_).

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> import scvcc
        >>> X = load_iris().data
        >>> model = scvcc.VCC(n_clusters=3, hidden=(16,)).fit(X)
        >>> model.predict_proba(X[:4]).sum(axis=1).round(6).tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        check_is_fitted(self)
        X = self._readable(X, reset=False)
        with threads(self.n_jobs):
            return self._embed(X, self.encoder_, self._probabilities)

    def _probabilities(self, H: np.ndarray) -> np.ndarray:
        return _assignment.probabilities(H, self.cluster_centers_, self.sharpness_)

    def _confidence(self) -> np.ndarray:
        """Probability of the label of each row of `X` in `fit`, (n,)."""
        return over_blocks(lambda H: self._probabilities(H).max(axis=1), self.embedding_)

    def novelty(self, X: Matrix) -> np.ndarray:
        """How unlike the training rows each row is, as a percentile of the training rows themselves.

        The share of training rows that lie nearer to the other training rows than this row does, in the encoder's last
        hidden layer and measured on a sample of 2,000. Training rows are spread evenly from 0 to 1, and new rows of the
        same kinds nearly so; rows of a kind that the model has not seen gather near 1. Probabilities cannot tell: they
        only compare the known clusters with each other.

        Parameters
        ----------
        X
            Dense or sparse, with the features of the training data.

        Returns
        -------
        Novelty (n,), from 0 to 1.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> import scvcc
        >>> X = load_iris().data
        >>> model = scvcc.VCC(n_clusters=3, hidden=(16,)).fit(X)
        >>> strange = [[30.0, 0.0, 0.0, 30.0]]  # no iris has petals of 30 cm
        >>> float(model.novelty(strange)[0])
        1.0
        """
        X = self._readable_for_novelty(X)
        with threads(self.n_jobs):
            return over_blocks(lambda block: self._place_block(block)[:, -1], X)

    def _place(self, X: Matrix) -> tuple[np.ndarray, np.ndarray]:
        """Embedding and novelty in one pass."""
        X = self._readable_for_novelty(X)
        with threads(self.n_jobs):
            both = over_blocks(self._place_block, X)
        return np.ascontiguousarray(both[:, :-1]), both[:, -1]

    def _place_block(self, block: Matrix) -> np.ndarray:
        """Embedding, and novelty in the last column."""
        rows = Rows(self._checked(block), self.encoder_.center.device)
        H, Z = encode_with_features(self.encoder_, rows, self.sample_.projection)
        return np.column_stack([H, _novelty.novelty(self.sample_, Z)])

    def _readable_for_novelty(self, X: Matrix) -> Matrix:
        check_is_fitted(self)
        X = self._readable(X, reset=False)
        if self.sample_ is None:
            raise ValueError(
                "The model was saved by an earlier version of scvcc, without the sample of training rows that novelty "
                "is measured against: fit and save it again."
            )
        return X

    def save(self, path: str | os.PathLike[str], *, extra: Mapping[str, Any] | None = None) -> None:
        """Write the model to one file, completely or not at all; the graph, history and stages stay behind.

        Parameters
        ----------
        path
            File to write, in the safetensors format. An old one is replaced.
        extra
            Further arrays (float32, float64, int64, uint8 or strings) and values (numbers, strings, lists) to keep in
            the file; `extra_` of the loaded model. None: those that this model was loaded with.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> import scvcc
        >>> X = load_iris().data
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> model = scvcc.VCC(n_clusters=3, hidden=(16,)).fit(X)
        >>> with TemporaryDirectory() as folder:
        ...     model.save(Path(folder) / "iris.safetensors")
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

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> import scvcc
        >>> X = load_iris().data
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> model = scvcc.VCC(n_clusters=3, hidden=(16,)).fit(X)
        >>> with TemporaryDirectory() as folder:
        ...     model.save(Path(folder) / "iris.safetensors")
        ...     loaded = scvcc.VCC.load(Path(folder) / "iris.safetensors")
        >>> bool((loaded.predict(X) == model.labels_).all())
        True
        """
        return _persist.load_model(cls, path, resolve_device(device))

    @property
    def proba_(self) -> np.ndarray:
        """Probabilities of the rows of `X` in `fit`, (n, n_clusters_); computed when asked for."""
        check_is_fitted(self)
        return over_blocks(self._probabilities, self.embedding_)

    @property
    def _n_features_out(self) -> int:
        return self.cluster_centers_.shape[1]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _readable(self, X: Matrix, *, reset: bool) -> Matrix:
        """`X` with its features checked; where its rows can be read in blocks, values are checked as they are read."""
        least = 2 if reset else 1
        if not has_row_blocks(X) or X.shape[0] < least or X.shape[1] == 0:
            dtype = np.float64 if isinstance(X, list | tuple) else VALUES["dtype"]  # numbers of Python are double
            return validate_data(self, X, reset=reset, ensure_min_samples=least, **VALUES | {"dtype": dtype})
        if (kind := getattr(X, "format", "csr")) != "csr":
            raise ValueError(
                f"X is on disk as {kind.upper()}, by columns, so that no part of its rows can be read alone: "
                "load it into memory, or store it as CSR."
            )
        return validate_data(self, X, reset=reset, skip_check_array=True)

    def _checked(self, X: Matrix) -> Matrix:
        """`X` as float32 or float64, finite, dense or CSR; float64 is narrowed by the encoder, batch by batch."""
        return check_array(X, estimator=self, input_name="X", **VALUES)

    def _values(self, X: Matrix, rows: np.ndarray | None) -> Matrix:
        """The chosen rows (None: all) in memory, checked."""
        if rows is not None:
            return self._checked(take_rows(X, rows))
        return self._checked(X if in_memory(X) else X[:])

    def _settings(self, n: int) -> Settings:
        """The user's choices, checked."""
        if self.n_clusters is not None:
            _check_integer("n_clusters", self.n_clusters, low=2, high=n, why=f"there are {n} rows")
        _check_integer("min_cluster_size", self.min_cluster_size, low=1)
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
        if self.max_train_cells is not None:
            _check_integer("max_train_cells", self.max_train_cells, low=max(self.n_neighbors + 1, self.n_clusters or 2))
        if self.n_jobs is not None and self.n_jobs != -1:
            _check_integer("n_jobs", self.n_jobs, low=1)
        return Settings(
            n_clusters=self.n_clusters,
            min_cluster_size=self.min_cluster_size,
            latent_dim=self.latent_dim,
            hidden=tuple(self.hidden),
            objective=self.objective,
            weights=resolve_weights(self.objective, self.loss_weights),
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
        )


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
