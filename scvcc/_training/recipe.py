"""The recipe: the stages of VCC in order, from the latent graph to an encoder with cluster centers."""

import logging
import math
from dataclasses import asdict, dataclass

import numpy as np
import scipy.sparse as sp
import torch

from scvcc import __version__
from scvcc._clusters.assignment import fill_empty_clusters
from scvcc._clusters.counts import estimate_partition
from scvcc._clusters.evidence import Points, clearly_parted, merge_unsupported
from scvcc._clusters.partition import choose_partition
from scvcc._training.checkpoint import Checkpoint
from scvcc._training.encoder import Encoder, Rows, encode
from scvcc._training.fitting import encoder_steps, fit_encoder
from scvcc._training.graph import Matrix
from scvcc._training.joint import joint_steps, train_jointly
from scvcc._training.layout import MAP_STEPS, STRUCTURE_STEPS, optimize_map, optimize_structure, place_clusters
from scvcc._training.monitor import Monitor
from scvcc._training.paper import planned_epochs, train_paper
from scvcc._training.ranks import from_first, rank
from scvcc._training.run import Outcome, Run, draw_seed, stream
from scvcc._training.settings import Settings
from scvcc._training.threads import restored_threads

logger = logging.getLogger(__name__)


@dataclass
class Trained:
    """Result of training."""

    encoder: Encoder
    centers: np.ndarray  # (K, latent_dim)
    H: np.ndarray  # (n, latent_dim)
    structure: np.ndarray  # (n, dim): coordinates in which clusters were found
    history: dict[str, np.ndarray]
    stages: dict[str, np.ndarray]


def train(
    X: Matrix,
    graph: sp.csr_matrix,
    settings: Settings,
    *,
    device: torch.device,
    seed: int,
    progress: bool,
    points: Points | None = None,
    checkpoint: Checkpoint | None = None,
) -> Trained:
    """Train on the rows of `X` and their latent graph with the objective that `settings` names.

    Evidence for clusters is sought in `points`, the same rows; without them none is. Goes on from a `checkpoint` of the same
    training.
    """
    generator = torch.Generator().manual_seed(draw_seed(stream(seed, "weights")))
    encoder = Encoder(X.shape[1], settings.hidden, settings.latent_dim, generator)
    encoder.standardize(X, graph)
    encoder.to(device)
    rows = Rows(X, device)
    objective = train_paper if settings.objective == "paper" else train_compact
    with Monitor(planned_steps(graph, settings), show=progress and rank() == 0) as monitor:
        run = Run(graph, settings, seed, monitor, points, checkpoint or Checkpoint())
        batch = None if points is None else points.batch
        facts = {"graph": graph, "batch": batch, "random_state": seed, "version of scvcc": __version__}
        run.checkpoint.match(X=X, **facts, **asdict(settings))
        monitor.restore(run.checkpoint.kept("monitor"))
        centers, labels, structure, stages = objective(encoder, rows, run)
    H = encode(encoder, rows).cpu().numpy()
    return Trained(encoder, fill_empty_clusters(H, centers, labels), H, structure, from_first(monitor.history), stages)


def train_compact(encoder: Encoder, rows: Rows, run: Run) -> Outcome:
    """The recipe: coordinates in many dimensions, clusters, coordinates of the map, then the encoder."""
    structure, labels, centers, stages = from_first(lambda: find_coordinates(run))
    H = stages["coordinates"]
    fit_encoder(encoder, rows, H, len(centers), run)
    centers = train_jointly(encoder, rows, H, centers, run)
    return centers, labels, structure, stages


def find_coordinates(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Coordinates in many dimensions, clusters in them and their centers on the map; start and end of the map."""
    start, structure = run.once("structure", lambda: optimize_structure(run))
    (labels,) = run.once("clusters", lambda: (find_clusters(structure, run),))
    placed = place_clusters(structure, labels, run)
    H, centers = run.once("map", lambda: optimize_map(placed, labels, run))
    return structure, labels, centers, {"start": start, "placed": placed, "coordinates": H}


def find_clusters(H: np.ndarray, run: Run) -> np.ndarray:
    """The partition of `H` that fits the graph best; the number of clusters is estimated if it is None."""
    n_clusters, rng = run.settings.n_clusters, run.rng("clusters")
    with restored_threads():  # candidates are polished by a parallel kernel
        if n_clusters is not None:
            labels = choose_partition(H, run.graph, n_clusters, rng)
        else:
            labels = estimate_partition(H, run.graph, rng, run.settings.min_cluster_size)
    labels = keep_supported(labels, run)
    if n_clusters is None:
        found = f"found {labels.max() + 1} clusters" if labels.any() else "no evidence for more than one cluster"
        logger.info("n_clusters=None: %s. Set n_clusters to choose another number.", found)
    return labels


def keep_supported(labels: np.ndarray, run: Run) -> np.ndarray:
    """The partition without clusters that lack support, if asked for; one cluster where an estimate has no support at all."""
    merging = run.settings.merge_unsupported
    if run.points is None or not (merging or run.settings.n_clusters is None):
        return labels
    rng = run.rng("evidence")
    if not merging and clearly_parted(run.points, labels, rng):
        return labels
    parent = merge_unsupported(run.points, labels, rng)
    if merging:
        logger.info("merge_unsupported: %d clusters merged into %d", len(parent), parent.max() + 1)
    return parent[labels] if merging or not parent.any() else labels


def planned_steps(graph: sp.csr_matrix, settings: Settings) -> int:
    """Steps of all stages, for the progress bar."""
    if settings.objective == "paper":
        return math.prod(planned_epochs(graph, settings))
    n = graph.shape[0]
    return STRUCTURE_STEPS + MAP_STEPS + encoder_steps(n, settings.n_clusters or 0, settings) + joint_steps(n, settings)
