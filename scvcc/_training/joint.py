"""The joint stage: all four losses through the encoder, anchored to the coordinates."""

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from scvcc._clusters.assignment import nearest_center
from scvcc._training import losses as _losses
from scvcc._training.checkpoint import Arrays
from scvcc._training.encoder import Encoder, Rows
from scvcc._training.fitting import Learner, restore, shuffled_batches, state_of, take_step
from scvcc._training.graph import entry_rows
from scvcc._training.monitor import mean_losses
from scvcc._training.run import Run
from scvcc._training.sampling import boundary_rates, contraction_rates, sample_neighbors, sample_strangers
from scvcc._training.settings import MAP_EPOCHS, Settings, beta


def train_jointly(encoder: Encoder, rows: Rows, H: np.ndarray, centers: np.ndarray, run: Run) -> np.ndarray:
    """All four losses through the encoder, anchored to the coordinates `H`; returns the centers.

    Each point is encoded at most once per epoch and meets its neighbors, strangers and the cluster frequencies in a bank of
    last known embeddings.
    """
    if joint_steps(len(rows), run.settings) == 0:
        return centers
    stage = JointStage(encoder, rows, H, centers, run)
    while stage.step < stage.total_steps:
        losses = stage.run_epoch()
        run.monitor.record("joint", stage.step, losses, labels=stage.labels())
        run.keep("joint", stage.state)
    return stage.centers.detach().cpu().numpy()


def joint_steps(n: int, settings: Settings, most_epochs: int = 4, most_steps: int = 40) -> int:
    """Steps of the joint stage on `n` rows: more gain nothing."""
    if settings.epochs is not None:
        return settings.epochs * settings.n_batches(n)
    return min(most_epochs * settings.n_batches(n), most_steps)


class JointStage:
    """State of the joint stage, all of it on the device."""

    def __init__(self, encoder: Encoder, rows: Rows, H: np.ndarray, centers: np.ndarray, run: Run) -> None:
        self.run, self.device, self.epoch, self.step = run, rows.device, 0, 0
        self.total_steps = joint_steps(len(rows), run.settings)
        self.rng = run.rng("joint")
        self.learner = Learner(encoder, rows, self.rng)
        self.anchor = torch.from_numpy(H).to(self.device)
        self.bank = self.anchor.clone()
        self.centers = torch.from_numpy(centers.astype(np.float32)).to(self.device).requires_grad_()
        self.optimizers = self.learner.optimizer, torch.optim.SGD([self.centers])  # Adam makes centers drift
        self.rates = boundary_rates(run.graph.data), contraction_rates(run.graph.data)
        self.strength = [torch.from_numpy(_point_strength(run.graph, r)).to(self.device) for r in self.rates]

        if kept := run.checkpoint.kept("joint"):
            self.bank, self.epoch = torch.tensor(kept.pop("bank")).to(self.device), int(kept.pop("epoch"))
            self.step = restore(kept, self.rng, *self.optimizers)

    def state(self) -> Arrays:
        """What a checkpoint keeps."""
        own = {"bank": self.bank.cpu().numpy(), "epoch": np.array(self.epoch)}
        return own | state_of(self.step, self.rng, *self.optimizers)

    def labels(self) -> np.ndarray:
        return nearest_center(self.bank.cpu().numpy(), self.centers.detach().cpu().numpy())

    def run_epoch(self) -> dict[str, float]:
        """One pass over the points, or as much of it as there are steps left; returns the mean of each loss."""
        self.epoch += 1
        self.beta, size = beta(MAP_EPOCHS + self.epoch), self.run.settings.batch_size
        batches = shuffled_batches(len(self.bank), size, self.rng, self.device)[: self.total_steps - self.step]
        drawn = self.draw(torch.cat(batches).cpu().numpy())
        self.count_clusters()
        steps = zip(batches, *(others.split(size) for others in drawn), strict=True)
        return mean_losses(self._take_step(*met) for met in steps) | {"beta": self.beta}

    def draw(self, points: np.ndarray, n_draws: int = 10) -> list[Tensor]:
        """What each of `points` meets, (m, n_draws) each: neighbors by both rates, strangers, and whether they are."""
        graph, rng = self.run.graph, self.rng
        minus, plus = (sample_neighbors(graph, points, rates, n_draws, rng) for rates in self.rates)
        strangers, valid = sample_strangers(graph, points, n_draws, rng)
        return [torch.from_numpy(a).to(self.device) for a in (minus, plus, strangers, valid.astype(np.float32))]

    def count_clusters(self) -> None:
        """The cluster frequencies over all points."""
        with torch.no_grad():
            self.frequencies = _losses.soft_assignment(self.bank, self.centers).sum(dim=0)

    def _take_step(self, *met: Tensor) -> dict[str, Tensor]:
        rate = self.run.settings.learning_rate / 30 * (1 - self.step / self.total_steps)
        self.step += 1
        return take_step("joint", self.losses(*met), self.run, rate, *self.optimizers, beta=self.beta)

    def losses(self, batch: Tensor, minus: Tensor, plus: Tensor, strangers: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """The losses of a batch and what it meets in the bank, which learns the new embeddings first."""
        H = self.learner(batch)  # (b, dim)
        self.bank[batch] = H.detach()
        d_minus, d_plus, d_apart = (
            _losses.pair_distance(H[:, None], self.bank[others]) for others in (minus, plus, strangers)
        )  # (b, draws)
        s_minus, s_plus = (strength[batch][:, None] / d_plus.numel() for strength in self.strength)
        return {
            "boundary": _losses.boundary_loss(d_minus, s_minus, repulsion=self.run.settings.repulsion),
            "contraction": _losses.contraction_loss(d_plus, s_plus),
            "expansion": -(valid * _losses.log_dissimilarity(d_apart)).sum() / valid.sum().clamp(min=1),
            "clustering": _losses.self_training_loss(H, self.centers, self.frequencies),
            "anchor": 10 * smooth_l1_loss(H, self.anchor[batch]),  # with less, labels drift from what the graph says
        }


def _point_strength(graph: sp.csr_matrix, rates: np.ndarray) -> np.ndarray:
    """Each point's part in a loss that is a mean over edges, relative to an even share, (n,)."""
    n = graph.shape[0]
    return (np.bincount(entry_rows(graph), weights=rates, minlength=n) * n / rates.sum()).astype(np.float32)
