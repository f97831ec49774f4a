"""The four losses of VCC as pure functions of distances and soft assignments."""

from __future__ import annotations

import torch
from torch import Tensor

DISTANCE_FLOOR = 1e-6  # added to squared distances: keeps d, log(1 − e⁻ᵈ) and their gradients finite at d = 0


def pair_distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distance between matching rows, smooth at zero."""
    return ((a - b).square().sum(dim=-1) + DISTANCE_FLOOR).sqrt()


def similarity(d: Tensor) -> Tensor:
    """F° = e⁻ᵈ (equation 3)."""
    return torch.exp(-d)


def log_dissimilarity(d: Tensor) -> Tensor:
    """log(1 − F°), accurate for small and for large distances."""
    near = torch.log(-torch.expm1(-d.clamp(max=1.0)))
    far = torch.log1p(-torch.exp(-d.clamp(min=0.5)))
    return torch.where(d < 0.7, near, far)


def boundary_loss(d: Tensor, share: Tensor, *, repulsion: float = 1.0) -> Tensor:
    """L_bps (equation 5): attraction and repulsion on the edges of E⁻; `repulsion` = 1 is the paper's form.

    The two halves balance at d = ln(1 + repulsion).
    """
    return (share * (d - repulsion * log_dissimilarity(d))).sum()


def contraction_loss(d: Tensor, share: Tensor) -> Tensor:
    """L_c (equation 7): −log F° = d, averaged over the edges of E⁺."""
    return (share * d).sum()


def expansion_loss(d: Tensor) -> Tensor:
    """L_e (equation 9): −log(1 − F°), averaged over random pairs that the graph does not connect."""
    return -log_dissimilarity(d).mean()


def soft_assignment(H: Tensor, centers: Tensor) -> Tensor:
    """Q (n, K): Student-t similarity of each point to each center, rows sum to one."""
    squared = torch.zeros(len(H), len(centers), dtype=H.dtype, device=H.device)
    for point, center in zip(H.unbind(dim=1), centers.unbind(dim=1), strict=True):  # n × K at a time, never n × K × dim
        squared = squared + (point[:, None] - center[None, :]).square()
    kernel = 1 / (1 + squared)
    return kernel / kernel.sum(dim=1, keepdim=True)


def target_distribution(Q: Tensor, frequencies: Tensor) -> Tensor:
    """P (n, K) of DEC: Q sharpened and divided by the cluster frequencies Σᵢ Qᵢⱼ over *all* points."""
    sharpened = Q.square() / frequencies
    return sharpened / sharpened.sum(dim=1, keepdim=True)


def clustering_loss(P: Tensor, Q: Tensor) -> Tensor:
    """L_clu: KL(P ‖ Q), averaged over points."""
    tiny = torch.finfo(Q.dtype).tiny
    return (P * (P.clamp(min=tiny).log() - Q.clamp(min=tiny).log())).sum(dim=1).mean()
