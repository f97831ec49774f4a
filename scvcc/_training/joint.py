"""The joint stage: all four losses through the encoder, anchored to the coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from scvcc._clusters import labels as _labels
from scvcc._training import losses as _losses
from scvcc._training import sampling as _sampling
from scvcc._training.encoder import Encoder, NoisyInput, Rows, adamw, has_fast_bfloat16, set_rate, shuffled_batches
from scvcc._training.settings import GAMMA, MAP_EPOCHS, WEIGHT_DECAY, weighted_total

if TYPE_CHECKING:
    import scipy.sparse as sp
    from numpy.random import Generator

    from scvcc._training.monitor import Monitor
    from scvcc._training.settings import Settings

ANCHOR = 10.0  # weight of the distance to the coordinates; with less, labels drift from what the graph says
DRAWS = 10  # edges of each kind, and strangers, per point and epoch


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
    """All four losses through the encoder, anchored to the coordinates `H`; returns the centers.

    Each point is encoded at most once per epoch and meets its neighbors, strangers and the cluster frequencies in a bank of
    last known embeddings.
    """
    if settings.joint_steps(len(rows)) == 0:
        return centers
    joint = JointStage(encoder, rows, H, centers, graph, settings, NoisyInput(encoder, rng))
    while joint.step < joint.total_steps:
        losses = joint.run_epoch(rng, monitor)
        monitor.record("joint", joint.step, losses, labels=joint.labels())
    return joint.centers.detach().cpu().numpy()


class Drawn(NamedTuple):
    """What each point of a batch meets, (b, DRAWS) each: numbers of points, and whether a stranger is one."""

    boundary: Tensor
    contraction: Tensor
    strangers: Tensor
    valid: Tensor


class JointStage:
    """State of the joint stage, all of it on the device."""

    def __init__(
        self,
        encoder: Encoder,
        rows: Rows,
        H: np.ndarray,
        centers: np.ndarray,
        graph: sp.csr_matrix,
        settings: Settings,
        noisy: NoisyInput,
    ) -> None:
        self.encoder, self.rows, self.graph, self.settings, self.noisy = encoder, rows, graph, settings, noisy
        self.anchor = torch.from_numpy(H).to(rows.device)
        self.centers = torch.from_numpy(centers.astype(np.float32)).to(rows.device).requires_grad_()
        self.bank = self.anchor.clone()
        self.half_precision = has_fast_bfloat16(rows.device)
        self.network_optimizer = adamw(encoder, WEIGHT_DECAY)
        self.center_optimizer = torch.optim.SGD([self.centers], lr=0.0)
        self.rates = _sampling.boundary_rates(graph.data), _sampling.contraction_rates(graph.data)
        self.strength = [self._to_device(_point_strength(graph, rates)) for rates in self.rates]
        self.total_steps, self.step, self.epoch = settings.joint_steps(len(rows)), 0, 0

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.rows.device)

    def labels(self) -> np.ndarray:
        return _labels.nearest_center(self.bank.cpu().numpy(), self.centers.detach().cpu().numpy())

    def run_epoch(self, rng: Generator, monitor: Monitor) -> dict[str, float]:
        """One pass over the points, or as much of it as there are steps left; returns the mean of each loss."""
        self.epoch += 1
        beta = GAMMA * (MAP_EPOCHS + self.epoch)
        size = self.settings.batch_size
        batches = shuffled_batches(len(self.rows), size, rng, self.rows.device)[: self.total_steps - self.step]
        drawn = self.draw(torch.cat(batches).cpu().numpy(), rng)
        self.count()
        sums: dict[str, Tensor] = {}
        for batch, *met in zip(batches, *(part.split(size) for part in drawn), strict=True):
            terms = self._losses(batch, Drawn(*met))
            terms["total"] = weighted_total(terms, self.settings.weights, beta)
            self._update(terms["total"])
            sums = {name: value.detach() + sums.get(name, 0) for name, value in terms.items()}
            monitor.advance("joint")
        return {name: float(value) / len(batches) for name, value in sums.items()} | {"beta": beta}

    def draw(self, points: np.ndarray, rng: Generator) -> Drawn:
        """Neighbors and strangers for `points` to meet."""
        minus, plus = (_sampling.sample_neighbors(self.graph, points, r, DRAWS, rng) for r in self.rates)
        strangers, valid = _sampling.sample_strangers(self.graph, points, DRAWS, rng)
        return Drawn(*map(self._to_device, (minus, plus, strangers, valid.astype(np.float32))))

    def count(self) -> None:
        """The cluster frequencies over all points."""
        with torch.no_grad():
            self.frequencies = _losses.soft_assignment(self.bank, self.centers).sum(dim=0)

    def _losses(self, batch: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        H = self.encoder.place(self.noisy(self.rows[batch]), half_precision=self.half_precision)  # (b, dim)
        self.bank[batch] = H.detach()
        met = (drawn.boundary, drawn.contraction, drawn.strangers)
        d_minus, d_plus, d_apart = (
            _losses.pair_distance(H[:, None], self.bank[others]) for others in met
        )  # (b, draws)
        s_minus, s_plus = (strength[batch][:, None] / d_plus.numel() for strength in self.strength)
        Q = _losses.soft_assignment(H, self.centers)
        P = _losses.target_distribution(Q, self.frequencies).detach()
        return {
            "boundary": _losses.boundary_loss(d_minus, s_minus, repulsion=self.settings.repulsion),
            "contraction": _losses.contraction_loss(d_plus, s_plus),
            "expansion": -(drawn.valid * _losses.log_dissimilarity(d_apart)).sum() / drawn.valid.sum().clamp(min=1),
            "clustering": _losses.clustering_loss(P, Q),
            "anchor": ANCHOR * smooth_l1_loss(H, self.anchor[batch]),
        }

    def _update(self, loss: Tensor) -> None:
        rate = 0.1 * self.settings.learning_rate * (1 - self.step / self.total_steps)
        set_rate(self.network_optimizer, rate)
        set_rate(self.center_optimizer, rate)
        self.network_optimizer.zero_grad()
        self.center_optimizer.zero_grad()
        loss.backward()
        self.network_optimizer.step()
        self.center_optimizer.step()
        self.step += 1


def _point_strength(graph: sp.csr_matrix, rates: np.ndarray) -> np.ndarray:
    """Each point's part in a loss that is a mean over edges, relative to an even share, (n,)."""
    n = graph.shape[0]
    heads = np.repeat(np.arange(n), np.diff(graph.indptr))
    return (np.bincount(heads, weights=rates, minlength=n) * n / rates.sum()).astype(np.float32)
