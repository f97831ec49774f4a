"""The four losses of VCC as pure functions of distances and soft assignments."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

DISTANCE_FLOOR = 1e-6  # added to squared distances: keeps d, log(1 − e⁻ᵈ) and their gradients finite at d = 0


def pair_distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distance between matching rows, smooth at zero."""
    return ((a - b).square().sum(dim=-1) + DISTANCE_FLOOR).sqrt()


def log_dissimilarity(d: Tensor) -> Tensor:
    """log(1 − F°) of the similarity F° = e⁻ᵈ (equation 3), accurate for small and for large distances."""
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


def drawn_losses(H: Tensor, pairs: Iterable[tuple[Any, Any]], *, repulsion: float) -> dict[str, Tensor]:
    """The losses of edges drawn from E⁻, edges drawn from E⁺, and disconnected pairs, of which there may be none."""
    d_minus, d_plus, d_apart = (pair_distance(H[head], H[tail]) for head, tail in pairs)
    even = torch.full_like(d_minus, 1 / len(d_minus))
    return {
        "boundary": boundary_loss(d_minus, even, repulsion=repulsion),
        "contraction": contraction_loss(d_plus, even),
        "expansion": expansion_loss(d_apart) if len(d_apart) else d_apart.sum(),
    }


def self_training_loss(H: Tensor, centers: Tensor, frequencies: Tensor | None = None) -> Tensor:
    """L_clu with its own target held fixed; without `frequencies` over all points, `H` are all of them."""
    Q = soft_assignment(H, centers)
    P = target_distribution(Q, Q.sum(dim=0) if frequencies is None else frequencies).detach()
    return clustering_loss(P, Q)


def weighted_total(terms: Mapping[str, Any], weights: Mapping[str, float], beta: float) -> Any:
    """L = Σ weight · loss, with β on the clustering loss; terms without a weight, such as the anchor, count once."""
    coefficients = {**weights, "clustering": weights["clustering"] * beta}
    return sum(coefficients.get(name, 1.0) * value for name, value in terms.items())
