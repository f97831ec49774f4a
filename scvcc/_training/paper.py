"""The paper's objective read literally, end to end with SGD: for comparison with the recipe."""

from functools import partial

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from scvcc._clusters.assignment import cluster_means, nearest_center
from scvcc._clusters.counts import estimate_n_clusters
from scvcc._clusters.partition import kmeans_labels
from scvcc._training import losses as _losses
from scvcc._training.encoder import Encoder, Rows, encode
from scvcc._training.fitting import restore, state_of, take_step
from scvcc._training.monitor import mean_losses
from scvcc._training.ranks import gathered, own_slice, sum_gradients
from scvcc._training.run import Outcome, Run
from scvcc._training.sampling import augmented_edges, draw_pairs
from scvcc._training.settings import Settings, beta

BATCH = 200  # edges; with the learning rate, momentum and weight decay below, the paper's


def train_paper(encoder: Encoder, rows: Rows, run: Run) -> Outcome:
    """Train the encoder on sampled edges from random weights; the only stage to see is the map at the start.

    Centers start by k-means after the first epoch, when β is still zero. Training ends early once the labels have settled.
    """
    start = encode(encoder, rows).cpu().numpy()
    stage, settled = PaperStage(encoder, rows, run), 1e-3
    n_epochs, n_steps = planned_epochs(run.graph, run.settings)
    for epoch in range(stage.resume(), n_epochs):
        losses = stage.run_epoch(n_steps, beta(epoch))
        stage.refresh()
        change = run.monitor.record("paper", (epoch + 1) * n_steps, losses, labels=stage.labels())
        if change < settled:
            break
        run.keep("paper", partial(state_of, epoch + 1, stage.rng, stage.optimizer))
    return stage.centers.detach().cpu().numpy(), stage.labels(), stage.H.cpu().numpy(), {"start": start}


def planned_epochs(graph: sp.csr_matrix, settings: Settings) -> tuple[int, int]:
    """Epochs, unless the labels settle before, and steps in each: as many draws as the graph has edges."""
    return 20 if settings.epochs is None else settings.epochs, max(graph.nnz // 2 // BATCH, 1)


class PaperStage:
    """State of training with the paper's objective."""

    def __init__(self, encoder: Encoder, rows: Rows, run: Run) -> None:
        self.encoder, self.rows, self.run, self.rng = encoder, rows, run, run.rng("paper")
        self.edges = augmented_edges(run.graph)
        self.optimizer = torch.optim.SGD(encoder.parameters(), momentum=0.9, weight_decay=5e-4)
        sum_gradients(encoder, self.optimizer)
        self.centers = torch.empty(0, run.settings.latent_dim, device=rows.device)  # none before `refresh`

    def resume(self) -> int:
        """Go on from a checkpoint, if there is one; returns the epoch."""
        kept = self.run.checkpoint.kept("paper")
        if kept:
            self._learn_centers(kept[f"0.{len(list(self.encoder.parameters()))}.weights"])
        epoch = restore(kept, self.rng, self.optimizer)
        if kept:
            self.refresh()
        return epoch

    def labels(self) -> np.ndarray:
        return nearest_center(self.H.cpu().numpy(), self.centers.detach().cpu().numpy())

    def refresh(self) -> None:
        """Embed all points; start the centers if there are none; cluster frequencies over all points."""
        self.H = encode(self.encoder, self.rows)
        if not len(self.centers):
            self._learn_centers(self._start_centers(self.H.cpu().numpy()))
        with torch.no_grad():
            self.frequencies = _losses.soft_assignment(self.H, self.centers).sum(dim=0)

    def _learn_centers(self, centers: np.ndarray) -> None:
        self.centers = torch.from_numpy(centers.astype(np.float32)).to(self.rows.device).requires_grad_()
        self.optimizer.add_param_group({"params": [self.centers], "weight_decay": 0.0})

    def _start_centers(self, H: np.ndarray) -> np.ndarray:
        rng, settings = self.rng, self.run.settings
        K = settings.n_clusters or estimate_n_clusters(H, self.run.graph, rng, settings.min_cluster_size)
        return cluster_means(H, kmeans_labels(H, K, rng), K)

    def run_epoch(self, n_steps: int, beta: float) -> dict[str, float]:
        """An epoch of steps; returns the mean of each loss."""
        steps = (take_step("paper", self.losses(), self.run, 0.01, self.optimizer, beta=beta) for _ in range(n_steps))
        return mean_losses(steps) | {"beta": beta}

    def losses(self) -> dict[str, Tensor]:
        """The losses of newly drawn edges and pairs; each of their points is encoded once."""
        ends = [end for pairs in draw_pairs(self.edges, self.run.graph, BATCH, self.rng) for end in pairs]
        points, position = np.unique(np.concatenate(ends), return_inverse=True)
        mine = torch.from_numpy(points[own_slice(len(points))]).to(self.rows.device)
        H = gathered(self.encoder(self.rows[mine]), len(points))
        ends = torch.from_numpy(position).to(self.rows.device).split([len(end) for end in ends])
        pairs = zip(ends[::2], ends[1::2], strict=True)
        terms = _losses.drawn_losses(H, pairs, repulsion=self.run.settings.repulsion)
        if len(self.centers):
            terms["clustering"] = _losses.self_training_loss(H, self.centers, self.frequencies)
        return terms
