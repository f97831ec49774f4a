"""Training: the stages of VCC in order, from the latent graph to an encoder with cluster centres."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from scvcc import _labels, _losses, _sampling
from scvcc._coordinates import FreeCoordinates, spectral_start
from scvcc._encoder import Encoder, Rows, encode
from scvcc._monitor import Monitor

if TYPE_CHECKING:
    import scipy.sparse as sp
    from numpy.random import Generator

    from scvcc._graph import Matrix

logger = logging.getLogger(__name__)

GAMMA = 0.01  # β = GAMMA · epoch
REPULSION = 0.1  # of the boundary loss; the paper's 1 inflates clusters to a radius of ln 2 on every scale
COMPACT_WEIGHTS = {"boundary": 0.1, "contraction": 1.0, "expansion": 0.2, "clustering": 1.0}
PAPER_WEIGHTS = {"boundary": 1.0, "contraction": 1.0, "expansion": 1.0, "clustering": 1.0}

STRUCTURE_STEPS, STRUCTURE_RATE = 200, 0.1
STRUCTURE_DIM = (2, 32)  # least and most dimensions; between them, the number of clusters
DIM_WHEN_UNKNOWN = 10
MAP_STEPS, MAP_RATE, MAP_EPOCHS = 250, 0.03, 20  # 20 nominal epochs: β ends at .2
ENCODER_STEPS, ENCODER_EPOCHS = 450, 2  # at least
WEIGHT_DECAY = 5e-4
JOINT_EPOCHS, PAPER_EPOCHS = 4, 20
PAPER_BATCH, PAPER_RATE, PAPER_MOMENTUM = 200, 0.01, 0.9
DRAWS = 10  # edges of each kind, and strangers, per point and epoch of the joint stage
REPORT_EVERY = 25  # steps of a coordinate stage
SETTLED = 1e-3  # share of labels that may change in an epoch when training stops


@dataclass(frozen=True)
class Settings:
    """What the user chose; everything else about training is a constant of this module."""

    n_clusters: int | None
    latent_dim: int = 2
    hidden: tuple[int, ...] = (500, 500, 2000)
    objective: str = "compact"
    weights: dict[str, float] = field(default_factory=lambda: dict(COMPACT_WEIGHTS))
    epochs: int | None = None
    batch_size: int = 256
    learning_rate: float = 1e-3
    keep_stages: bool = False

    @property
    def n_epochs(self) -> int:
        """Epochs of end-to-end training: of the joint stage, or of all training with the paper's objective."""
        if self.epochs is not None:
            return self.epochs
        return PAPER_EPOCHS if self.objective == "paper" else JOINT_EPOCHS


@dataclass
class Trained:
    """Result of training."""

    encoder: Encoder
    centers: np.ndarray  # (K, latent_dim)
    H: np.ndarray  # (n, latent_dim)
    history: dict[str, np.ndarray]
    stages: dict[str, np.ndarray]


def train(
    X: Matrix, graph: sp.csr_matrix, settings: Settings, *, device: torch.device, seed: int, progress: bool
) -> Trained:
    """Train on the rows of `X` and their latent graph with the objective that `settings` names."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    encoder = Encoder(X.shape[1], settings.hidden, settings.latent_dim, generator)
    encoder.standardise(X)
    encoder.to(device)
    run = train_paper if settings.objective == "paper" else train_compact
    with Monitor(_planned_steps(len(graph.indptr) - 1, graph, settings), show=progress) as monitor:
        return run(encoder, Rows(X, device), graph, settings, rng, monitor)


def train_compact(
    encoder: Encoder, rows: Rows, graph: sp.csr_matrix, settings: Settings, rng: Generator, monitor: Monitor
) -> Trained:
    """The recipe: coordinates in many dimensions, clusters, coordinates of the map, then the encoder."""
    gauge = Gauge(graph, settings.weights, REPULSION, rng)
    start, structure = optimise_structure(graph, settings, gauge, rng, monitor)
    labels = find_clusters(structure, graph, settings.n_clusters, rng)
    placed = place_clusters(structure, labels, graph, settings, rng)
    H, centers = optimise_map(placed, labels, graph, settings, gauge, rng, monitor)
    fit_encoder(encoder, rows, H, settings, rng, monitor)
    centers = train_jointly(encoder, rows, H, centers, graph, settings, rng, monitor)

    embedding = encode(encoder, rows).cpu().numpy()
    centers = fill_empty_clusters(embedding, centers, labels)
    views = {"start": start[:, : settings.latent_dim], "placed": placed, "coordinates": H, "encoder": embedding}
    return Trained(encoder, centers, embedding, monitor.history(), views if settings.keep_stages else {})


# ---------------------------------------------------------------------------------------------------- coordinates


class Gauge:
    """Measures the four losses of an embedding on a fixed sample of edges and disconnected pairs."""

    def __init__(
        self, graph: sp.csr_matrix, weights: dict[str, float], repulsion: float, rng: Generator, size: int = 20_000
    ) -> None:
        edges = _sampling.augmented_edges(graph)
        minus = _sampling.sample_edges(edges.boundary, size, rng)
        plus = _sampling.sample_edges(edges.contraction, size, rng)
        self._boundary = edges.head[minus], edges.tail[minus]
        self._contraction = edges.head[plus], edges.tail[plus]
        self._expansion = _sampling.sample_disconnected_pairs(graph, size, rng)
        self._weights, self._repulsion = weights, repulsion

    def __call__(self, H: np.ndarray, centers: np.ndarray | None = None, beta: float = 0.0) -> dict[str, float]:
        """The losses by name, their weighted total, and β."""
        points = torch.from_numpy(np.asarray(H, np.float64))
        d_minus, d_plus, d_apart = (
            _losses.pair_distance(points[head], points[tail])
            for head, tail in (self._boundary, self._contraction, self._expansion)
        )
        even = torch.full_like(d_plus, 1 / len(d_plus))
        terms = {
            "boundary": _losses.boundary_loss(d_minus, even, repulsion=self._repulsion),
            "contraction": _losses.contraction_loss(d_plus, even),
            "expansion": _losses.expansion_loss(d_apart) if len(d_apart) else torch.zeros(()),
        }
        total = sum(self._weights[name] * value for name, value in terms.items())
        if centers is not None:
            Q = _losses.soft_assignment(points, torch.from_numpy(np.asarray(centers, np.float64)))
            terms["clustering"] = _losses.clustering_loss(_losses.target_distribution(Q, Q.sum(dim=0)), Q)
            total = total + beta * terms["clustering"]
        return {name: float(value) for name, value in {**terms, "total": total}.items()} | {"beta": beta}


def optimise_structure(
    graph: sp.csr_matrix, settings: Settings, gauge: Gauge, rng: Generator, monitor: Monitor
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of the coordinates in as many dimensions as clusters: in two, clusters block each other's way."""
    dim = int(np.clip(settings.n_clusters or DIM_WHEN_UNKNOWN, *STRUCTURE_DIM))
    start = spectral_start(graph, max(dim, settings.latent_dim if settings.keep_stages else dim), rng)
    points = FreeCoordinates(
        start[:, :dim], graph, settings.weights, REPULSION, STRUCTURE_STEPS, STRUCTURE_RATE, int(rng.integers(2**31))
    )
    while points.step < points.total_steps:
        points.run(REPORT_EVERY)
        monitor.advance("structure", REPORT_EVERY)
        monitor.record("structure", points.step, **gauge(points.H))
    return start, points.H


def find_clusters(H: np.ndarray, graph: sp.csr_matrix, n_clusters: int | None, rng: Generator) -> np.ndarray:
    """The partition of `H` that fits the graph best; the number of clusters is estimated if it is None."""
    if n_clusters is None:
        estimate = _labels.estimate_partition(H, graph, rng)
        n_clusters = int(estimate.max()) + 1
        logger.info("n_clusters=None: found %d clusters. Set n_clusters to choose another number.", n_clusters)
    return _labels.choose_partition(H, graph, n_clusters, rng)


def place_clusters(
    H: np.ndarray, labels: np.ndarray, graph: sp.csr_matrix, settings: Settings, rng: Generator, starts: int = 6
) -> np.ndarray:
    """Start of the map: each cluster at a place found on the graph of clusters, each point a little beside it."""
    K, dim = int(labels.max()) + 1, settings.latent_dim
    means = _labels.cluster_means(H, labels, K)
    candidates = rng.normal(size=(starts, K, dim))
    candidates[0] = _principal_axes(means, dim)
    places = _layout(torch.from_numpy(candidates), *_cluster_forces(graph, labels, settings.weights))
    residual = _principal_axes(H - means[labels], dim)
    residual *= 0.05 / max(residual.std(), 1e-9)
    return places[labels] + residual + rng.normal(scale=1e-3, size=residual.shape)


def _principal_axes(H: np.ndarray, dim: int) -> np.ndarray:
    """The first `dim` principal components, padded with zeros."""
    n_components = min(dim, *H.shape)
    out = np.zeros((len(H), dim))
    out[:, :n_components] = PCA(n_components, svd_solver="full").fit_transform(H)
    return out


def _cluster_forces(graph: sp.csr_matrix, labels: np.ndarray, weights: dict[str, float]) -> tuple[Tensor, Tensor]:
    """Attraction and repulsion (K, K) between clusters: the contraction and expansion losses summed over pairs."""
    K = int(labels.max()) + 1
    edges = _sampling.augmented_edges(graph)
    pairs = labels[edges.head] * K + labels[edges.tail]
    attraction = np.bincount(pairs, weights=edges.contraction, minlength=K * K).reshape(K, K)
    share = np.bincount(labels, minlength=K) / len(labels)
    repulsion = max(weights["expansion"], 0.05) * np.outer(share, share)
    return torch.from_numpy(np.triu(attraction + attraction.T, 1)), torch.from_numpy(np.triu(2 * repulsion, 1))


def _layout(candidates: Tensor, attraction: Tensor, repulsion: Tensor, steps: int = 150) -> np.ndarray:
    """The best of several placements of K points, (starts, K, dim) → (K, dim)."""
    places = candidates.clone().requires_grad_()
    optimiser = torch.optim.Adam([places], lr=0.1)
    for _ in range(steps):
        d = _losses.pair_distance(places[:, :, None], places[:, None])  # (starts, K, K)
        energy = (attraction * d - repulsion * _losses.log_dissimilarity(d)).sum(dim=(1, 2))
        optimiser.zero_grad()
        energy.sum().backward()
        optimiser.step()
    return places.detach()[int(energy.argmin())].numpy()


def optimise_map(
    placed: np.ndarray,
    labels: np.ndarray,
    graph: sp.csr_matrix,
    settings: Settings,
    gauge: Gauge,
    rng: Generator,
    monitor: Monitor,
) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates and centres of the map under all four losses."""
    weights = {**settings.weights, "clustering": settings.weights["clustering"] * GAMMA * MAP_EPOCHS}
    centers = _labels.cluster_medians(placed, labels, int(labels.max()) + 1)
    seed = int(rng.integers(2**31))
    points = FreeCoordinates(placed, graph, weights, REPULSION, MAP_STEPS, MAP_RATE, seed, centers)
    while points.step < points.total_steps:
        points.run(REPORT_EVERY)
        monitor.advance("map", REPORT_EVERY)
        losses = gauge(points.H, points.centers, points.beta)
        monitor.record("map", points.step, labels=_labels.nearest_center(points.H, points.centers), **losses)
    return points.H, points.centers


# -------------------------------------------------------------------------------------------------------- encoder


def fit_encoder(
    encoder: Encoder, rows: Rows, H: np.ndarray, settings: Settings, rng: Generator, monitor: Monitor
) -> None:
    """Teach the encoder the coordinates by regression."""
    target = torch.from_numpy(H).to(rows.device)
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=settings.learning_rate, weight_decay=WEIGHT_DECAY)
    total_steps, step = _encoder_steps(len(rows), settings.batch_size), 0
    while step < total_steps:
        error = torch.zeros((), device=rows.device)
        batches = _shuffled_batches(len(rows), settings.batch_size, rng, rows.device)[: total_steps - step]
        for batch in batches:
            _set_rate(optimiser, settings.learning_rate * (1 - 0.95 * step / total_steps))
            loss = smooth_l1_loss(encoder(rows[batch]), target[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            error += loss.detach()
            step += 1
            monitor.advance("encoder")
        mean = float(error) / len(batches)
        monitor.record("encoder", step, anchor=mean, total=mean)


def _encoder_steps(n: int, batch_size: int) -> int:
    return max(ENCODER_STEPS, ENCODER_EPOCHS * -(-n // batch_size))


def _shuffled_batches(n: int, batch_size: int, rng: Generator, device: torch.device) -> list[Tensor]:
    """Random batches that cover all rows once, as index tensors on the device."""
    return list(torch.from_numpy(rng.permutation(n)).to(device).split(batch_size))


def _set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


def train_jointly(
    encoder: Encoder,
    rows: Rows,
    H: np.ndarray,
    centers: np.ndarray,
    graph: sp.csr_matrix,
    settings: Settings,
    rng: Generator,
    monitor: Monitor,
) -> np.ndarray:
    """All four losses through the encoder, anchored to the coordinates `H`; returns the centres.

    Each point is encoded once per epoch and meets its neighbours, strangers and the cluster frequencies in a bank of
    last known embeddings. Stops early when the labels have settled.
    """
    if settings.n_epochs == 0:
        return centers
    joint = _JointStage(encoder, rows, H, centers, graph, settings)
    for epoch in range(settings.n_epochs):
        losses = joint.run_epoch(epoch, rng, monitor)
        change = monitor.record("joint", joint.step, labels=joint.labels(), **losses)
        if change < SETTLED:
            break
    return joint.centers.detach().cpu().numpy()


class _JointStage:
    """State of the joint stage, all of it on the device."""

    def __init__(
        self,
        encoder: Encoder,
        rows: Rows,
        H: np.ndarray,
        centers: np.ndarray,
        graph: sp.csr_matrix,
        settings: Settings,
    ) -> None:
        self.encoder, self.rows, self.graph, self.settings = encoder, rows, graph, settings
        self.anchor = torch.from_numpy(H).to(rows.device)
        self.centers = torch.from_numpy(centers.astype(np.float32)).to(rows.device).requires_grad_()
        self.bank = encode(encoder, rows)
        self.network_optimiser = torch.optim.AdamW(encoder.parameters(), weight_decay=WEIGHT_DECAY)
        self.center_optimiser = torch.optim.SGD([self.centers], lr=0.0)
        self.rates = _sampling.boundary_rates(graph.data), _sampling.contraction_rates(graph.data)
        self.strength = [self._to_device(_point_strength(graph, rates)) for rates in self.rates]
        self.total_steps, self.step = settings.n_epochs * -(-len(rows) // settings.batch_size), 0

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.rows.device)

    def labels(self) -> np.ndarray:
        return _labels.nearest_center(self.bank.cpu().numpy(), self.centers.detach().cpu().numpy())

    def run_epoch(self, epoch: int, rng: Generator, monitor: Monitor) -> dict[str, float]:
        """One pass over all points; returns the mean of each loss."""
        weights, beta = self.settings.weights, GAMMA * (MAP_EPOCHS + epoch + 1) * self.settings.weights["clustering"]
        self.drawn = [self._to_device(_sampling.sample_neighbors(self.graph, r, DRAWS, rng)) for r in self.rates]
        strangers, valid = _sampling.sample_strangers(self.graph, DRAWS, rng)
        self.strangers, self.valid = self._to_device(strangers), self._to_device(valid.astype(np.float32))
        with torch.no_grad():
            self.frequencies = _losses.soft_assignment(self.bank, self.centers).sum(dim=0)
        sums: dict[str, Tensor] = {}
        batches = _shuffled_batches(len(self.rows), self.settings.batch_size, rng, self.rows.device)
        for batch in batches:
            terms = self._losses(batch)
            coefficients = {**weights, "clustering": beta, "anchor": 1.0}
            terms["total"] = sum(coefficients[name] * value for name, value in terms.items())
            self._update(terms["total"])
            sums = {name: sums.get(name, 0) + value.detach() for name, value in terms.items()}
            monitor.advance("joint")
        return {name: float(value) / len(batches) for name, value in sums.items()} | {"beta": beta}

    def _losses(self, batch: Tensor) -> dict[str, Tensor]:
        H = self.encoder(self.rows[batch])  # (b, dim)
        self.bank[batch] = H.detach()
        d_minus, d_plus = (_losses.pair_distance(H[:, None], self.bank[drawn[batch]]) for drawn in self.drawn)
        d_apart = _losses.pair_distance(H[:, None], self.bank[self.strangers[batch]])  # (b, draws)
        s_minus, s_plus = (strength[batch][:, None] / d_plus.numel() for strength in self.strength)
        valid = self.valid[batch]
        Q = _losses.soft_assignment(H, self.centers)
        P = _losses.target_distribution(Q, self.frequencies).detach()
        return {
            "boundary": _losses.boundary_loss(d_minus, s_minus, repulsion=REPULSION),
            "contraction": _losses.contraction_loss(d_plus, s_plus),
            "expansion": -(valid * _losses.log_dissimilarity(d_apart)).sum() / valid.sum().clamp(min=1),
            "clustering": _losses.clustering_loss(P, Q),
            "anchor": smooth_l1_loss(H, self.anchor[batch]),
        }

    def _update(self, loss: Tensor) -> None:
        rate = 0.5 * self.settings.learning_rate * (1 - self.step / self.total_steps)
        _set_rate(self.network_optimiser, rate)
        _set_rate(self.center_optimiser, rate)
        self.network_optimiser.zero_grad()
        self.center_optimiser.zero_grad()
        loss.backward()
        self.network_optimiser.step()
        self.center_optimiser.step()
        self.step += 1


def _point_strength(graph: sp.csr_matrix, rates: np.ndarray) -> np.ndarray:
    """Each point's part in a loss that is a mean over edges, relative to an even share, (n,)."""
    n = graph.shape[0]
    heads = np.repeat(np.arange(n), np.diff(graph.indptr))
    return (np.bincount(heads, weights=rates, minlength=n) * n / rates.sum()).astype(np.float32)


def fill_empty_clusters(H: np.ndarray, centers: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Move the centre of a cluster that lost all its points back to the points it was made for; else drop it."""
    K = len(centers)
    counts = np.bincount(_labels.nearest_center(H, centers), minlength=K)
    if (counts == 0).any():
        homes = _labels.cluster_medians(H, labels, K)
        centers = np.where((counts == 0)[:, None], homes, centers)
        counts = np.bincount(_labels.nearest_center(H, centers), minlength=K)
    if (counts == 0).any():
        logger.warning("%d of %d clusters are empty and were dropped.", (counts == 0).sum(), K)
    return centers[counts > 0]


# -------------------------------------------------------------------------------------------- the paper's objective


def train_paper(
    encoder: Encoder, rows: Rows, graph: sp.csr_matrix, settings: Settings, rng: Generator, monitor: Monitor
) -> Trained:
    """The paper's objective read literally: SGD on sampled edges through the encoder, from random weights.

    Centres start by k-means on the embedding after the first epoch, when β is still zero.
    """
    optimiser = torch.optim.SGD(encoder.parameters(), PAPER_RATE, PAPER_MOMENTUM, weight_decay=WEIGHT_DECAY)
    first = encode(encoder, rows).cpu().numpy()
    centers: Tensor | None = None
    for epoch in range(settings.n_epochs):
        losses = _paper_epoch(encoder, rows, graph, centers, epoch, optimiser, settings, rng, monitor)
        H = encode(encoder, rows)
        if centers is None:
            centers = _start_centers(H, graph, settings.n_clusters, rng)
            optimiser.add_param_group({"params": [centers], "weight_decay": 0.0})
        labels = _labels.nearest_center(H.cpu().numpy(), centers.detach().cpu().numpy())
        change = monitor.record("paper", epoch + 1, labels=labels, **losses)
        if change < SETTLED:
            break
    embedding = encode(encoder, rows).cpu().numpy()
    final = fill_empty_clusters(embedding, centers.detach().cpu().numpy(), labels)
    stages = {"start": first, "encoder": embedding} if settings.keep_stages else {}
    return Trained(encoder, final, embedding, monitor.history(), stages)


def _start_centers(H: Tensor, graph: sp.csr_matrix, n_clusters: int | None, rng: Generator) -> Tensor:
    points = H.cpu().numpy()
    if n_clusters is None:
        n_clusters = int(_labels.estimate_partition(points, graph, rng).max()) + 1
    labels = _labels.kmeans_labels(points, n_clusters, rng)
    return torch.from_numpy(_labels.cluster_means(points, labels, n_clusters).astype(np.float32)).to(H.device).requires_grad_()


def _paper_epoch(
    encoder: Encoder,
    rows: Rows,
    graph: sp.csr_matrix,
    centers: Tensor | None,
    epoch: int,
    optimiser: torch.optim.Optimizer,
    settings: Settings,
    rng: Generator,
    monitor: Monitor,
) -> dict[str, float]:
    edges, beta = _sampling.augmented_edges(graph), GAMMA * epoch * settings.weights["clustering"]
    frequencies = None
    if centers is not None:
        with torch.no_grad():
            frequencies = _losses.soft_assignment(encode(encoder, rows), centers).sum(dim=0)
    sums: dict[str, Tensor] = {}
    n_steps = _paper_steps(graph)
    for _ in range(n_steps):
        terms = _paper_losses(encoder, rows, _paper_batch(edges, graph, rng), centers, frequencies)
        coefficients = {**settings.weights, "clustering": beta}
        terms["total"] = sum(coefficients[name] * value for name, value in terms.items())
        optimiser.zero_grad()
        terms["total"].backward()
        optimiser.step()
        sums = {name: sums.get(name, 0) + value.detach() for name, value in terms.items()}
        monitor.advance("paper")
    return {name: float(value) / n_steps for name, value in sums.items()} | {"beta": beta}


def _paper_steps(graph: sp.csr_matrix) -> int:
    """Steps of one epoch: as many draws as the graph has edges."""
    return max(graph.nnz // 2 // PAPER_BATCH, 1)


def _paper_batch(edges: _sampling.Edges, graph: sp.csr_matrix, rng: Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    minus = _sampling.sample_edges(edges.boundary, PAPER_BATCH, rng)
    plus = _sampling.sample_edges(edges.contraction, PAPER_BATCH, rng)
    apart = _sampling.sample_disconnected_pairs(graph, PAPER_BATCH, rng)
    return [(edges.head[minus], edges.tail[minus]), (edges.head[plus], edges.tail[plus]), apart]


def _paper_losses(
    encoder: Encoder,
    rows: Rows,
    pairs: list[tuple[np.ndarray, np.ndarray]],
    centers: Tensor | None,
    frequencies: Tensor | None,
) -> dict[str, Tensor]:
    points, place = np.unique(np.concatenate([np.concatenate(pair) for pair in pairs]), return_inverse=True)
    H = encoder(rows[torch.from_numpy(points).to(rows.device)])  # each point once, shared by all its pairs
    index = torch.from_numpy(place).to(rows.device)
    ends = index.split([len(end) for pair in pairs for end in pair])
    d_minus, d_plus, d_apart = (_losses.pair_distance(H[a], H[b]) for a, b in zip(ends[::2], ends[1::2], strict=True))
    even = torch.full_like(d_minus, 1 / len(d_minus))
    terms = {
        "boundary": _losses.boundary_loss(d_minus, even),
        "contraction": _losses.contraction_loss(d_plus, even),
    }
    if len(d_apart):
        terms["expansion"] = _losses.expansion_loss(d_apart)
    if centers is not None and frequencies is not None:
        Q = _losses.soft_assignment(H, centers)
        terms["clustering"] = _losses.clustering_loss(_losses.target_distribution(Q, frequencies).detach(), Q)
    return terms


def _planned_steps(n: int, graph: sp.csr_matrix, settings: Settings) -> int:
    if settings.objective == "paper":
        return settings.n_epochs * _paper_steps(graph)
    joint = settings.n_epochs * -(-n // settings.batch_size)
    return STRUCTURE_STEPS + MAP_STEPS + _encoder_steps(n, settings.batch_size) + joint


def resolve_weights(objective: str, given: dict[str, Any] | None) -> dict[str, float]:
    """Loss weights of an objective with the user's own put over them."""
    defaults = {"compact": COMPACT_WEIGHTS, "paper": PAPER_WEIGHTS}
    if objective not in defaults:
        raise ValueError(f"objective must be one of {sorted(defaults)}, found {objective!r}.")
    weights = dict(defaults[objective])
    for name, value in (given or {}).items():
        if name not in weights:
            raise ValueError(f"loss_weights has no loss {name!r}: choose from {sorted(weights)}.")
        if not np.isfinite(value) or value < 0:
            raise ValueError(f"loss_weights[{name!r}] must be a number >= 0, found {value!r}.")
        weights[name] = float(value)
    return weights
