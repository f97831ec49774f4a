"""The paper's objective read literally, end to end with SGD: for comparison with the recipe of `_train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from scvcc._clusters import labels as _labels
from scvcc._training import losses as _losses
from scvcc._training import sampling as _sampling
from scvcc._training.encoder import Encoder, Rows, encode
from scvcc._training.settings import GAMMA, WEIGHT_DECAY, weighted_total

if TYPE_CHECKING:
    import scipy.sparse as sp
    from numpy.random import Generator

    from scvcc._training.monitor import Monitor
    from scvcc._training.settings import Settings

EPOCHS, BATCH, RATE, MOMENTUM = 20, 200, 0.01, 0.9
SETTLED = 1e-3  # share of labels that may still change in the last epoch


def train_paper(
    encoder: Encoder, rows: Rows, graph: sp.csr_matrix, settings: Settings, rng: Generator, monitor: Monitor
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Train the encoder on sampled edges from random weights; returns centers, labels and the map at the start.

    Centers start by k-means after the first epoch, when β is still zero.
    """
    start = encode(encoder, rows).cpu().numpy()
    stage = PaperStage(encoder, rows, graph, settings)
    for epoch in range(_n_epochs(settings)):
        losses = stage.run_epoch(epoch, rng, monitor)
        stage.refresh(rng)
        steps = (epoch + 1) * steps_per_epoch(graph)
        change = monitor.record("paper", steps, losses, labels=stage.labels())
        if change < SETTLED:
            break
    return stage.centers.detach().cpu().numpy(), stage.labels(), {"start": start}


def planned_steps(graph: sp.csr_matrix, settings: Settings) -> int:
    """Steps that training takes unless the labels settle before."""
    return _n_epochs(settings) * steps_per_epoch(graph)


def _n_epochs(settings: Settings) -> int:
    return EPOCHS if settings.epochs is None else settings.epochs


def steps_per_epoch(graph: sp.csr_matrix) -> int:
    """As many draws as the graph has edges."""
    return max(graph.nnz // 2 // BATCH, 1)


class PaperStage:
    """State of training with the paper's objective."""

    def __init__(self, encoder: Encoder, rows: Rows, graph: sp.csr_matrix, settings: Settings) -> None:
        self.encoder, self.rows, self.graph, self.settings = encoder, rows, graph, settings
        self.edges = _sampling.augmented_edges(graph)
        self.optimizer = torch.optim.SGD(encoder.parameters(), RATE, MOMENTUM, weight_decay=WEIGHT_DECAY)
        self.centers = torch.empty(0, settings.latent_dim, device=rows.device)  # none before `refresh`

    def labels(self) -> np.ndarray:
        return _labels.nearest_center(self.H.cpu().numpy(), self.centers.detach().cpu().numpy())

    def refresh(self, rng: Generator) -> None:
        """Embed all points; start the centers if there are none; cluster frequencies over all points."""
        self.H = encode(self.encoder, self.rows)
        if not len(self.centers):
            self.centers = self._start_centers(self.H.cpu().numpy(), rng)
            self.optimizer.add_param_group({"params": [self.centers], "weight_decay": 0.0})
        with torch.no_grad():
            self.frequencies = _losses.soft_assignment(self.H, self.centers).sum(dim=0)

    def _start_centers(self, H: np.ndarray, rng: Generator) -> Tensor:
        least = self.settings.min_cluster_size
        K = self.settings.n_clusters or _labels.estimate_n_clusters(H, self.graph, rng, least)
        means = _labels.cluster_means(H, _labels.kmeans_labels(H, K, rng), K)
        return torch.from_numpy(means.astype(np.float32)).to(self.rows.device).requires_grad_()

    def run_epoch(self, epoch: int, rng: Generator, monitor: Monitor) -> dict[str, float]:
        """One epoch of steps; returns the mean of each loss."""
        beta, n_steps = GAMMA * epoch, steps_per_epoch(self.graph)
        sums: dict[str, Tensor] = {}
        for _ in range(n_steps):
            terms = self._losses(self._draw_pairs(rng))
            terms["total"] = weighted_total(terms, self.settings.weights, beta)
            self.optimizer.zero_grad()
            terms["total"].backward()
            self.optimizer.step()
            sums = {name: value.detach() + sums.get(name, 0) for name, value in terms.items()}
            monitor.advance("paper")
        return {name: float(value) / n_steps for name, value in sums.items()} | {"beta": beta}

    def _draw_pairs(self, rng: Generator) -> list[np.ndarray]:
        """Heads and tails of edges from E⁻, of edges from E⁺, and of disconnected pairs."""
        minus = _sampling.sample_edges(self.edges.boundary, BATCH, rng)
        plus = _sampling.sample_edges(self.edges.contraction, BATCH, rng)
        apart = _sampling.sample_disconnected_pairs(self.graph, BATCH, rng)
        return [self.edges.head[minus], self.edges.tail[minus], self.edges.head[plus], self.edges.tail[plus], *apart]

    def _losses(self, pairs: list[np.ndarray]) -> dict[str, Tensor]:
        points, place = np.unique(np.concatenate(pairs), return_inverse=True)
        H = self.encoder(self.rows[torch.from_numpy(points).to(self.rows.device)])  # each point once for all its pairs
        ends = torch.from_numpy(place).to(self.rows.device).split([len(end) for end in pairs])
        d_minus, d_plus, d_apart = (
            _losses.pair_distance(H[head], H[tail]) for head, tail in zip(ends[::2], ends[1::2], strict=True)
        )
        even = torch.full_like(d_minus, 1 / BATCH)
        terms = {
            "boundary": _losses.boundary_loss(d_minus, even, repulsion=self.settings.repulsion),
            "contraction": _losses.contraction_loss(d_plus, even),
        }
        if len(d_apart):
            terms["expansion"] = _losses.expansion_loss(d_apart)
        if len(self.centers):
            Q = _losses.soft_assignment(H, self.centers)
            terms["clustering"] = _losses.clustering_loss(_losses.target_distribution(Q, self.frequencies).detach(), Q)
        return terms
