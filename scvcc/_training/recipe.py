"""Training: the stages of VCC in order, from the latent graph to an encoder with cluster centers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from scvcc._clusters import labels as _labels
from scvcc._training import losses as _losses
from scvcc._training import sampling as _sampling
from scvcc._training.coordinates import BETWEEN, FreeCoordinates, spectral_start
from scvcc._training.encoder import (
    Encoder,
    NoisyInput,
    Rows,
    adamw,
    encode,
    has_fast_bfloat16,
    set_rate,
    shuffled_batches,
)
from scvcc._training.joint import train_jointly
from scvcc._training.monitor import Monitor
from scvcc._training.paper import planned_steps, train_paper
from scvcc._training.settings import GAMMA, MAP_EPOCHS, WEIGHT_DECAY, weighted_total

if TYPE_CHECKING:
    import scipy.sparse as sp
    from numpy.random import Generator

    from scvcc._training.graph import Matrix
    from scvcc._training.settings import Settings

logger = logging.getLogger(__name__)

STRUCTURE_STEPS, STRUCTURE_RATE = 150, 0.12
STRUCTURE_DIM = (2, 32)  # least and most dimensions; between them, the number of clusters
DIM_WHEN_UNKNOWN = 16
GRAVITY = 0.01  # attraction between all clusters: those without a common edge would drift apart for ever
APART = 1.0  # where the two forces balance at the least
MAP_STEPS, MAP_RATE = 100, 0.03
ENCODER_STEPS, ENCODER_EPOCHS = 300, 4  # at least
LARGE_ERROR = 0.1  # beyond, errors count by size, not by square: a rare cluster is not drawn to a common one near it
REPORT_EVERY = 25  # steps of a coordinate stage


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
    encoder.standardize(X, graph)
    encoder.to(device)
    rows = Rows(X, device)
    run = train_paper if settings.objective == "paper" else train_compact
    with Monitor(_planned_steps(graph, settings), show=progress) as monitor:
        centers, labels, stages = run(encoder, rows, graph, settings, rng, monitor)
    H = encode(encoder, rows).cpu().numpy()
    return Trained(encoder, _labels.fill_empty_clusters(H, centers, labels), H, monitor.history(), stages)


def train_compact(
    encoder: Encoder, rows: Rows, graph: sp.csr_matrix, settings: Settings, rng: Generator, monitor: Monitor
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The recipe: coordinates in many dimensions, clusters, coordinates of the map, then the encoder.

    Returns the centers, the partition they were made for, and views of the map on the way.
    """
    gauge = Gauge(graph, settings, rng)
    start, structure = optimize_structure(graph, settings, gauge, rng, monitor)
    labels = find_clusters(structure, graph, settings, rng)
    placed = place_clusters(structure, labels, graph, settings, rng)
    H, centers = optimize_map(placed, labels, graph, settings, gauge, rng, monitor)
    fit_encoder(encoder, rows, H, settings, rng, monitor)
    centers = train_jointly(encoder, rows, H, centers, graph, settings, rng, monitor)
    return centers, labels, {"start": start, "placed": placed, "coordinates": H}


# ---------------------------------------------------------------------------------------------------- coordinates


class Gauge:
    """Measures the four losses of an embedding on a fixed sample of edges and disconnected pairs."""

    def __init__(self, graph: sp.csr_matrix, settings: Settings, rng: Generator, size: int = 20_000) -> None:
        edges = _sampling.augmented_edges(graph)
        minus = _sampling.sample_edges(edges.boundary, size, rng)
        plus = _sampling.sample_edges(edges.contraction, size, rng)
        self._boundary = edges.head[minus], edges.tail[minus]
        self._contraction = edges.head[plus], edges.tail[plus]
        self._expansion = _sampling.sample_disconnected_pairs(graph, size, rng)
        self._weights, self._repulsion = settings.weights, settings.repulsion

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
        if centers is not None:
            Q = _losses.soft_assignment(points, torch.from_numpy(np.asarray(centers, np.float64)))
            terms["clustering"] = _losses.clustering_loss(_losses.target_distribution(Q, Q.sum(dim=0)), Q)
        terms["total"] = weighted_total(terms, self._weights, beta)
        return {name: float(value) for name, value in terms.items()} | {"beta": beta}


def optimize_structure(
    graph: sp.csr_matrix, settings: Settings, gauge: Gauge, rng: Generator, monitor: Monitor
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of the coordinates in as many dimensions as clusters: in two, clusters block each other's way."""
    dim = int(np.clip(settings.n_clusters or DIM_WHEN_UNKNOWN, *STRUCTURE_DIM))
    start = spectral_start(graph, dim, rng)
    seed = int(rng.integers(2**31))
    points = FreeCoordinates(start, graph, settings.weights, settings.repulsion, STRUCTURE_STEPS, STRUCTURE_RATE, seed)
    while points.step < points.total_steps:
        points.run(REPORT_EVERY)
        monitor.advance("structure", REPORT_EVERY)
        monitor.record("structure", points.step, gauge(points.H))
    return _principal_axes(start, settings.latent_dim), points.H


def find_clusters(H: np.ndarray, graph: sp.csr_matrix, settings: Settings, rng: Generator) -> np.ndarray:
    """The partition of `H` that fits the graph best; the number of clusters is estimated if it is None."""
    if settings.n_clusters is not None:
        return _labels.choose_partition(H, graph, settings.n_clusters, rng)
    labels = _labels.estimate_partition(H, graph, rng, settings.min_cluster_size)
    found = int(labels.max()) + 1
    logger.info("n_clusters=None: found %d clusters. Set n_clusters to choose another number.", found)
    return labels


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
    if H.std(axis=0).any():
        out[:, :n_components] = PCA(n_components, svd_solver="full").fit_transform(H)
    return out


def _cluster_forces(graph: sp.csr_matrix, labels: np.ndarray, weights: dict[str, float]) -> tuple[Tensor, Tensor]:
    """Attraction and repulsion (K, K) between clusters: the contraction and expansion losses summed over pairs."""
    K = int(labels.max()) + 1
    edges = _sampling.augmented_edges(graph)
    pairs = labels[edges.head] * K + labels[edges.tail]
    pull = np.bincount(pairs, weights=edges.contraction, minlength=K * K).reshape(K, K)
    share = np.bincount(labels, minlength=K) / len(labels)
    chance = 2 * np.outer(share, share)
    attraction = BETWEEN * (pull + pull.T) + GRAVITY * chance
    repulsion = np.maximum(max(weights["expansion"], 0.05) * chance, np.expm1(APART) * attraction)
    return torch.from_numpy(np.triu(attraction, 1)), torch.from_numpy(np.triu(repulsion, 1))


def _layout(candidates: Tensor, attraction: Tensor, repulsion: Tensor, steps: int = 150) -> np.ndarray:
    """The best of several placements of K points, (starts, K, dim) → (K, dim)."""
    places = candidates.clone().requires_grad_()
    optimizer = torch.optim.Adam([places], lr=0.1)
    for _ in range(steps):
        d = _losses.pair_distance(places[:, :, None], places[:, None])  # (starts, K, K)
        energy = (attraction * d - repulsion * _losses.log_dissimilarity(d)).sum(dim=(1, 2))
        optimizer.zero_grad()
        energy.sum().backward()
        optimizer.step()
    return places.detach()[int(energy.argmin())].numpy()


def optimize_map(
    placed: np.ndarray,
    labels: np.ndarray,
    graph: sp.csr_matrix,
    settings: Settings,
    gauge: Gauge,
    rng: Generator,
    monitor: Monitor,
) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates and centers of the map under all four losses.

    Contraction between clusters counts less: two dimensions would merge clusters that were found in many.
    """
    centers = _labels.cluster_medians(placed, labels, int(labels.max()) + 1)
    seed = int(rng.integers(2**31))
    points = FreeCoordinates(
        placed,
        graph,
        settings.weights,
        settings.repulsion,
        MAP_STEPS,
        MAP_RATE,
        seed,
        centers,
        labels,
        final_beta=GAMMA * MAP_EPOCHS,
    )
    while points.step < points.total_steps:
        points.run(REPORT_EVERY)
        monitor.advance("map", REPORT_EVERY)
        losses = gauge(points.H, points.centers, points.beta)
        monitor.record("map", points.step, losses, labels=_labels.nearest_center(points.H, points.centers))
    return points.H, points.centers


# -------------------------------------------------------------------------------------------------------- encoder


def fit_encoder(
    encoder: Encoder, rows: Rows, H: np.ndarray, settings: Settings, rng: Generator, monitor: Monitor
) -> None:
    """Teach the encoder the coordinates by regression from noisy input."""
    target = torch.from_numpy(H).to(rows.device)
    optimizer, half = adamw(encoder, WEIGHT_DECAY), has_fast_bfloat16(rows.device)
    noisy = NoisyInput(encoder, rng)
    total_steps, step = _encoder_steps(len(rows), settings), 0
    while step < total_steps:
        error = torch.zeros((), device=rows.device)
        batches = shuffled_batches(len(rows), settings.batch_size, rng, rows.device)[: total_steps - step]
        for batch in batches:
            set_rate(optimizer, settings.learning_rate * (1 - 0.95 * step / total_steps))
            places = encoder.place(noisy(rows[batch]), half_precision=half)
            loss = smooth_l1_loss(places, target[batch], beta=LARGE_ERROR)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            error += loss.detach()
            step += 1
            monitor.advance("encoder")
        mean = float(error) / len(batches)
        monitor.record("encoder", step, {"anchor": mean, "total": mean})


def _encoder_steps(n: int, settings: Settings) -> int:
    return max(ENCODER_STEPS, ENCODER_EPOCHS * settings.n_batches(n))


def _planned_steps(graph: sp.csr_matrix, settings: Settings) -> int:
    n = graph.shape[0]
    if settings.objective == "paper":
        return planned_steps(graph, settings)
    return STRUCTURE_STEPS + MAP_STEPS + _encoder_steps(n, settings) + settings.joint_steps(n)
