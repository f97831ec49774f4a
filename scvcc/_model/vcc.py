"""`VCC`, the scikit-learn estimator: validation, fitting, and the use of a fitted model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from scvcc._clusters.assignment import calibrate_sharpness
from scvcc._clusters.evidence import Points
from scvcc._model.checks import as_seed, named, validated
from scvcc._model.derived import grown, numbered_by_size, sample_of_all, support_of, warn_about
from scvcc._model.files import load_model, save_model
from scvcc._model.neighbors import Batches, rows_and_graph
from scvcc._model.parameters import checked_settings, opened_checkpoint, resolve_device
from scvcc._model.placing import embedded, leaf_of, novel, over_rows, predicted, probabilities, probable, transformed
from scvcc._model.rows import over_blocks, readable, values
from scvcc._training.forks import check_kernels
from scvcc._training.graph import GraphMode, Matrix, components
from scvcc._training.ranks import check_same, from_first, join, rank
from scvcc._training.recipe import train
from scvcc._training.run import stream
from scvcc._training.threads import threads


@named
@dataclass(repr=False, eq=False)  # a constructor that stores its arguments, as scikit-learn asks
class VCC(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, BaseEstimator):
    """Very Compact Clusters: a map, labels, confidence, and an encoder that places and labels new points.

    Lays out a neighbor graph so that connected points move together and unconnected ones apart, chooses the clusters that
    fit the graph best, and trains a neural network to reproduce the map from the input :cite:p:`vcc`.

    Parameters
    ----------
    n_clusters
        Number of clusters. None estimates it; the estimate is 1 if no valley of density separates any two clusters. Very
        small data, or groups that lie far apart, may give fewer than `n_clusters`, with a warning.
    min_cluster_size
        If the number of clusters is estimated, no cluster is smaller than this (or than half of all rows). A given
        `n_clusters` is returned whatever the size of the clusters. Leaves of the tree have about this many rows or more.
    merge_unsupported
        Merge clusters until a valley of density separates all neighbors (:func:`scvcc.tl.test_clusters`). A given
        `n_clusters` is then an upper limit. Not used with the objective "paper".
    latent_dim
        Dimensions of the embedding.
    n_neighbors
        Size of each row's neighborhood in the graph, the row itself included, as in scanpy: 16 is the row and its 15
        nearest others. About 16 for cells and images; 50 to 100 for sparse documents.
    metric
        Distance for the neighbor search: "euclidean", "cosine", or another name that pynndescent and scikit-learn
        share.
    n_pcs
        If `X` has more features than this, the neighbor search uses that many principal components (for sparse
        `X`, truncated SVD). None searches `X` itself. The encoder always sees `X`.
    hidden
        Sizes of the encoder's hidden layers.
    objective
        "compact": the recipe of this package. "paper": the paper's objective, end to end with SGD; for comparison.
    loss_weights
        Weights that replace the objective's own, by name: "boundary", "contraction", "expansion", "clustering".
        0 switches a loss off.
    epochs
        Epochs of end-to-end training. None: 40 steps, at most 4 epochs, for "compact"; 20 epochs for "paper". 0 skips
        the joint stage of "compact".
    batch_size
        Number of rows in a mini-batch of the encoder.
    learning_rate
        Learning rate of the encoder.
    keep_stages
        Keep the embedding at three points of training in `stages_`: the start, the clusters in place, and the
        coordinates that the encoder learns.
    device
        "auto" takes a CUDA GPU if there is one and the CPU otherwise; or any torch device, such as "mps".
    max_train_cells
        If `X` has more rows and no graph is given, train on a sketch of this many, drawn more often from sparse regions of
        the data than from dense ones; then place and label all rows. None trains on all. See :doc:`/howto/large_data`.
    batch_strength
        Share of the differences between batches to remove, from 0 to 1; used only if batches are given.
    n_jobs
        Number of threads. None uses one for fewer than 5,000 rows, and otherwise what numba and torch are set to, but no more
        than the processors this process may use, by its affinity and the quota of its container. −1 uses all of these.
    random_state
        Seed or generator. The same seed on the same machine gives the same result. None draws a seed.
    progress
        Show a progress bar.
    checkpoint
        File that keeps the progress of a long fit. If it exists, the same fit resumes from it and gives the result of an
        uninterrupted fit; the file is removed at the end. It is refused if it belongs to other data or settings. See
        :doc:`/howto/large_data`.

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
    tree_ : Tree
        Nested partitions, from one cluster to `len(tree_.size)`, including the fitted one: `tree_.names(30)` names the
        clusters that `predict(X, n_clusters=30)` numbers. Leaves have about `min_cluster_size` rows or more.
    leaves_ : ndarray of shape (n,)
        The leaf of the tree that each row belongs to.
    support_ : Support or None
        Evidence for pairs of neighboring clusters: `pairs` (m, 2), `link` (m,), the share of the smaller one's graph weight
        that leads to the other, and `p` (m,), small if a valley of density separates the two. `weak` lists the clusters
        with a p of 0.05 or more. None if there are more than 50 clusters, which would take too long.
    trained_rows_ : ndarray of shape (m,)
        Indices of the training rows, ascending: all rows, or the sketch.
    graph_ : csr_matrix of shape (m, m)
        The latent graph of the training rows.
    history_ : dict of ndarray
        Losses, β and the share of labels that changed, with the stage and step they belong to.
    stages_ : dict of ndarray
        Only with `keep_stages`: (m, latent_dim), of the training rows.
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

    n_clusters: int | None = None
    _: KW_ONLY
    min_cluster_size: int = 10
    merge_unsupported: bool = False
    latent_dim: int = 2
    n_neighbors: int = 16
    metric: str = "euclidean"
    n_pcs: int | None = 50
    hidden: Sequence[int] = (256, 256, 256)
    objective: Literal["compact", "paper"] = "compact"
    loss_weights: Mapping[str, float] | None = None
    epochs: int | None = None
    batch_size: int = 256
    learning_rate: float = 6e-3
    keep_stages: bool = False
    device: str | torch.device = "auto"
    max_train_cells: int | None = 100_000
    batch_strength: float = 1.0
    n_jobs: int | None = None
    random_state: int | np.random.Generator | np.random.RandomState | None = 0
    progress: bool = False
    checkpoint: str | os.PathLike[str] | None = None

    @validated()
    def fit(
        self,
        X: Matrix,
        y: Any = None,
        *,
        graph: Matrix | None = None,
        graph_mode: GraphMode = "distance",
        rows: np.ndarray | None = None,
        batch: ArrayLike | None = None,
    ) -> Self:
        """Build the latent graph, train the encoder and label the rows of `X`.

        Parameters
        ----------
        X
            Dense or sparse, (n, d). Sparse rows are made dense one mini-batch at a time.
        y
            Not used.
        graph
            Neighbor graph of the rows of `X`, sparse (n, n). None searches for neighbors.
        graph_mode
            What `graph` holds: neighbor distances ("distance") or weights that grow with closeness ("connectivity").
        rows
            Train on these rows of `X` only, and label all rows: indices in ascending order, (m,). `graph` is then a graph
            of these rows, (m, m). Ignored without a graph.
        batch
            Batch of each row of `X`, such as its sample or donor: names or numbers, (n,). Technical differences between
            batches are removed before the neighbor search; a given `graph` is used as it is. The encoder is trained on
            `X` as it is, so new rows of these batches need no correction. A difference between batches is no evidence for
            clusters.

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
        check_kernels()
        X = readable(self, X, reset=True)
        n = X.shape[0]
        settings, device = checked_settings(self, n), join(resolve_device(self.device))
        check_same(X.shape, settings)
        kept = opened_checkpoint(self)
        seed = from_first(lambda: as_seed(self.random_state))
        batches = None if batch is None else Batches.of(batch, n)
        rows, latent = from_first(lambda: rows_and_graph(self, X, graph, graph_mode, rows, batches, seed))
        part = values(X, rows)
        with threads(self.n_jobs, X.shape[0]):
            points = Points(components(part, seed), latent, None if batches is None else batches.among(rows).codes)
            trained = train(
                part, latent, settings, device=device, seed=seed, progress=self.progress, points=points, checkpoint=kept
            )
            H = trained.H if rows is None else over_blocks(lambda block: embedded(trained.encoder, block), X)
            labels, centers = numbered_by_size(H, trained.centers, settings)
            own = labels if rows is None else labels[rows]
            support = support_of(points, own, stream(seed, "evidence"))
            sharpness = calibrate_sharpness(trained.H, centers, own, latent, stream(seed, "assignment"))
            sample = sample_of_all(X, trained.encoder, centers, seed)
            tree, rule, leaves = grown(trained, part, own, latent, settings.min_cluster_size, stream(seed, "tree"))
            if rows is not None:
                leaves = over_blocks(lambda block: leaf_of(trained.encoder, centers, tree, rule, block), X)
                tree = replace(tree, size=np.bincount(leaves, minlength=len(tree.size)))
        warn_about(len(centers), n, settings)

        self.encoder_, self.device_ = trained.encoder, str(device)
        self.graph_, self.history_, self.trained_rows_ = latent, trained.history, np.arange(n) if rows is None else rows
        self.embedding_, self.labels_ = H, labels
        self.cluster_centers_, self.n_clusters_ = centers, len(centers)
        self.sharpness_, self.sample_, self.support_ = sharpness, sample, support
        self.tree_, self.leaf_rule_, self.leaves_ = tree, rule, leaves
        for name in ("stages_", "extra_"):  # of an earlier fit, or of the file that the model was loaded from
            self.__dict__.pop(name, None)
        if self.keep_stages:
            self.stages_ = {name: H.astype(np.float32) for name, H in trained.stages.items()}
        kept.remove()
        return self

    def fit_transform(self, X: Matrix, y: Any = None, **fit_params: Any) -> np.ndarray:
        """Fit and return the embedding.

        Parameters
        ----------
        X
            Dense or sparse, (n, d).
        y
            Not used.
        **fit_params
            `graph`, `graph_mode`, `rows` and `batch` of `fit`.

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
        return over_rows(self, X, transformed)

    def predict(self, X: Matrix, n_clusters: int | None = None) -> np.ndarray:
        """Label rows by the nearest center on the map.

        Parameters
        ----------
        X
            Dense or sparse, with the features of the training data.
        n_clusters
            Cut the tree into this many clusters. None: the fitted clusters.

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

        Coarser and finer clusters of the same fit:

        >>> len(model.tree_.names(2))  # such as "0" and "1+2"
        2
        >>> int(model.predict(X, n_clusters=2).max())
        1
        """
        return over_rows(self, X, partial(predicted, n_clusters=n_clusters), n_clusters)

    def predict_proba(self, X: Matrix, n_clusters: int | None = None) -> np.ndarray:
        """Probability of each cluster: the soft assignment, sharpened so that it predicts the labels of neighbors.

        Parameters
        ----------
        X
            Dense or sparse, with the features of the training data.
        n_clusters
            Cut the tree into this many clusters. The probabilities of the parts of a cluster add up to its own. None: the
            fitted clusters.

        Returns
        -------
        Probabilities (n, n_clusters).

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> import scvcc
        >>> X = load_iris().data
        >>> model = scvcc.VCC(n_clusters=3, hidden=(16,)).fit(X)
        >>> model.predict_proba(X[:4]).sum(axis=1).round(6).tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        return over_rows(self, X, partial(probable, n_clusters=n_clusters), n_clusters)

    def novelty(self, X: Matrix) -> np.ndarray:
        """How unlike the training rows each row is: the share of rows of known kinds that are less unlike them.

        The mean distance to the 15 nearest of 2,000 training rows in the encoder's second hidden layer, relative to such
        distances in the row's cluster, and ranked among those of the training rows. Rows of a kind that the model has not
        seen tend to have values near 1. Probabilities do not show this: they only compare the known clusters with each
        other. Each row is judged by itself; :func:`scvcc.tl.map_query` also considers similar cells of the query.

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
        return over_rows(self, X, novel)

    @validated()
    def save(self, path: str | os.PathLike[str], *, extra: Mapping[str, Any] | None = None) -> None:
        """Write the model to a single safetensors file, completely or not at all, without graph, history and stages.

        Parameters
        ----------
        path
            File to write. An existing file is replaced.
        extra
            Further arrays (float32, float64, int64, uint8 or strings) and values (numbers, strings, lists) to keep in
            the file; they become `extra_` of the loaded model. None keeps those that this model was loaded with.

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
        if rank() == 0:
            save_model(self, path, extra)

    @classmethod
    @validated()
    def load(cls, path: str | os.PathLike[str], device: str | torch.device = "auto") -> Self:
        """Read a model written by `save`. No code in the file is run.

        Parameters
        ----------
        path
            File to read. A damaged file, or one that holds something else, raises a ValueError.
        device
            Where to put the encoder; it may differ from the device used for training.

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
        return load_model(cls, path, resolve_device(device))

    @property
    def proba_(self) -> np.ndarray:
        """Probabilities of the rows of `X` in `fit`, (n, n_clusters_); computed when asked for."""
        check_is_fitted(self)
        return over_blocks(lambda H: probabilities(self, H), self.embedding_)

    @property
    def confidence_(self) -> np.ndarray:
        """Probability of the label of each row of `X` in `fit`, (n,); computed when asked for."""
        check_is_fitted(self)
        return over_blocks(lambda H: probabilities(self, H).max(axis=1), self.embedding_)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "embedding_"):
            return text
        return f"{text} fitted: {self.n_clusters_} clusters of {len(self.embedding_)} rows"

    @property
    def _n_features_out(self) -> int:
        return self.cluster_centers_.shape[1]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
