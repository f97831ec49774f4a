"""Free coordinates: the losses of VCC minimized over the points themselves, before any network is trained.

Method of auxiliary coordinates (Carreira-Perpiñán & Vladymyrov 2015). Full-batch Adam in compiled code: each point
gathers the forces of its edges, of a few random disconnected points and of the centers, so that no two threads write
to the same place and the result does not depend on their number.
"""

from dataclasses import dataclass, field

import numba as nb
import numpy as np
import scipy.sparse as sp

from scvcc._training.graph import entry_rows
from scvcc._training.losses import DISTANCE_FLOOR
from scvcc._training.sampling import boundary_rates, contraction_rates
from scvcc._training.settings import MAP_EPOCHS, Settings, beta
from scvcc._training.threads import threads_for

BETWEEN = 0.25  # what contraction between clusters counts once they are found; in full, the map would merge them


@dataclass
class FreeCoordinates:
    """Points `H` (and centers, if any) under the four losses, with the state of the optimizer.

    Parameters
    ----------
    H
        Start, (n, dim).
    graph
        Latent graph, symmetric CSR with sorted indices.
    settings
        Weights of the losses, and the share of the repulsive half in the boundary loss.
    seed
        Of the random pairs.
    total_steps, learning_rate
        The learning rate falls linearly to zero over all steps.
    centers
        (K, dim). With centers the clustering loss fades in, β rising linearly from zero, and the boundary loss fades out.
    labels
        Cluster of each point, if known: edges between clusters then contract less.
    """

    H: np.ndarray
    graph: sp.csr_matrix
    settings: Settings
    seed: int
    total_steps: int
    learning_rate: float
    centers: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    labels: np.ndarray | None = None
    step: int = 0

    def __post_init__(self) -> None:
        self.H = np.array(self.H, dtype=np.float32, order="C")
        self.centers = np.array(self.centers, dtype=np.float64)
        self._moments = np.zeros((2, *self.H.shape), np.float32)
        self._frequencies = np.full(len(self.centers), len(self.H) / max(len(self.centers), 1))
        pointers, neighbors = self.graph.indptr.astype(np.int64), self.graph.indices.astype(np.int32)
        self._edges = pointers, neighbors, *edge_strengths(self.graph, self.labels)

    @property
    def progress(self) -> float:
        return self.step / self.total_steps

    @property
    def beta(self) -> float:
        return beta(MAP_EPOCHS) * self.progress if len(self.centers) else 0.0

    @property
    def boundary_weight(self) -> float:
        return self.settings.weights["boundary"] * (1 - self.progress if len(self.centers) else 1)

    def run(self, steps: int) -> None:
        """Take `steps` steps, or as many as are left."""
        with threads_for(len(self.H)):
            for _ in range(min(steps, self.total_steps - self.step)):
                self._take_step()

    def _take_step(self) -> None:
        weights = self.boundary_weight, self.settings.weights["contraction"], self.settings.weights["expansion"]
        forces = np.array([*weights, self.settings.repulsion], np.float32)
        gradient = _gradient(self.H, *self._edges, forces, np.uint64(self.seed * self.total_steps + self.step))
        rate = self.learning_rate * (1 - self.progress) + 1e-4
        if len(self.centers):
            self._pull_to_centers(gradient, rate)
        self.step += 1
        _adam(self.H, gradient, self._moments, self.step, rate)

    def _pull_to_centers(self, gradient: np.ndarray, rate: float) -> None:
        """Add the clustering loss to `gradient` and move the centers, by plain gradient: Adam makes them drift."""
        weight = self.beta * self.settings.weights["clustering"]
        frequencies, center_gradient = _clustering_gradient(self.H, self.centers, self._frequencies, gradient, weight)
        self._frequencies = frequencies.sum(axis=0) + 1e-9
        self.centers -= rate * center_gradient.sum(axis=0) * len(self.centers) / len(self.H)


def edge_strengths(graph: sp.csr_matrix, labels: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Shares of each stored entry in E⁻ and E⁺, times n: the loss is then a mean over edges and a sum over points."""
    minus, plus = boundary_rates(graph.data), contraction_rates(graph.data)
    n = 2 * graph.shape[0]  # every undirected edge is stored twice
    minus, plus = n * minus / minus.sum(), n * plus / plus.sum()
    if labels is not None:
        plus[labels[entry_rows(graph)] != labels[graph.indices]] *= BETWEEN
    return minus.astype(np.float32), plus.astype(np.float32)


@nb.njit(inline="always")
def _mix(state):
    """One output of the splitmix64 generator."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@nb.njit(inline="always")
def _is_connected(neighbors, low, high, j):
    """Whether `j` is in the sorted slice neighbors[low:high]."""
    nearest = low + np.searchsorted(neighbors[low:high], j)
    return nearest < high and neighbors[nearest] == j


@nb.njit(inline="always")
def _exp(x):
    """eˣ for 0 ≤ x ≤ 15 in single precision, by a polynomial for 2ᶠ, f < 1: quicker than the library's."""
    y = x * np.float32(1.4426950408889634)  # log₂ e
    whole = np.int32(y)
    f = y - np.float32(whole)
    power = np.float32(1.8775767e-3)
    power = power * f + np.float32(8.9893397e-3)
    power = power * f + np.float32(5.5826318e-2)
    power = power * f + np.float32(2.4015361e-1)
    power = power * f + np.float32(6.9315308e-1)
    power = power * f + np.float32(9.9999994e-1)
    return power * np.float32(1 << whole)


@nb.njit(parallel=True, cache=True)
def _gradient(H, pointers, neighbors, boundary, contraction, forces, seed, n_negatives=5):  # noqa: PLR0915
    """Gradient (n, dim) of the boundary, contraction and expansion losses with respect to each point.

    `forces` are the weights of the three losses and the share of repulsion; `n_negatives` random pairs push a point.
    """
    n, dim = H.shape
    w_b, w_c, w_e, repulsion = forces[0], forces[1], forces[2], forces[3]
    G = np.zeros_like(H)
    floor, one = np.float32(DISTANCE_FLOOR), np.float32(1.0)
    out_of_reach = np.float32(15.0)  # e⁻¹⁵: repulsion beyond this distance is lost in rounding
    golden = np.uint64(0x9E3779B97F4A7C15)  # step of the splitmix64 generator
    for i in nb.prange(n):
        met = np.uint64(0)  # the last six bits of the neighbors' numbers: tells most strangers without a search
        for e in range(pointers[i], pointers[i + 1]):
            j = neighbors[e]
            met |= np.uint64(1) << np.uint64(j & 63)
            d2 = floor
            for k in range(dim):
                d2 += (H[i, k] - H[j, k]) ** 2
            d = np.sqrt(d2)
            force = w_c * contraction[e]
            if w_b > 0:
                force += w_b * boundary[e] * (one - repulsion / (_exp(min(d, out_of_reach)) - one))
            force /= d
            for k in range(dim):
                G[i, k] += force * (H[i, k] - H[j, k])
        if w_e > 0:
            push = np.zeros(dim, np.float32)
            drawn = 0
            state = _mix(seed * golden + np.uint64(i))
            for _ in range(n_negatives):
                state += golden
                j = np.int64(((_mix(state) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))
                may_be_neighbor = (met >> np.uint64(j & 63)) & np.uint64(1)
                if j == i or (may_be_neighbor and _is_connected(neighbors, pointers[i], pointers[i + 1], j)):
                    continue
                drawn += 1
                d2 = floor
                for k in range(dim):
                    d2 += (H[i, k] - H[j, k]) ** 2
                d = np.sqrt(d2)
                if d < out_of_reach:
                    force = one / ((_exp(d) - one) * d)
                    for k in range(dim):
                        push[k] += force * (H[i, k] - H[j, k])
            if drawn > 0:
                scale = 2 * w_e / drawn  # a pair pushes both its ends; here each point collects its own share
                for k in range(dim):
                    G[i, k] -= scale * push[k]
    return G


@nb.njit(parallel=True, cache=True)
def _clustering_gradient(H, centers, frequencies, G, beta):
    """Add the gradient of β KL(P ‖ Q) to `G`; returns Σ Q and the gradient of the centers, summed over chunks of points.

    There are as many chunks for any number of threads, so that the sums do not depend on it.
    """
    n_chunks = 64
    n, dim = H.shape
    K = len(centers)
    rarity = 1 / frequencies
    new_frequencies = np.zeros((n_chunks, K))
    center_gradient = np.zeros((n_chunks, K, dim))
    for chunk in nb.prange(n_chunks):
        kernel = np.zeros(K)
        for i in range(chunk * n // n_chunks, (chunk + 1) * n // n_chunks):
            total = 0.0
            for k in range(K):
                d2 = 1.0
                for x in range(dim):
                    d2 += (H[i, x] - centers[k, x]) ** 2
                kernel[k] = 1 / d2
                total += kernel[k]
            scale, normalizer = 1 / total, 0.0
            for k in range(K):
                normalizer += (kernel[k] * scale) ** 2 * rarity[k]
            certainty = 1 / normalizer
            for k in range(K):
                q = kernel[k] * scale
                p = q * q * rarity[k] * certainty
                new_frequencies[chunk, k] += q
                force = 2 * beta * kernel[k] * (p - q)
                for x in range(dim):
                    pull = force * (H[i, x] - centers[k, x])
                    G[i, x] += np.float32(pull)
                    center_gradient[chunk, k, x] -= pull
    return new_frequencies, center_gradient


@nb.njit(parallel=True, cache=True)
def _adam(H, G, moments, step, rate):
    """One step of Adam (β₁ = .9, β₂ = .99) in place."""
    n, dim = H.shape
    scale = np.float32(rate * np.sqrt(1 - 0.99**step) / (1 - 0.9**step))
    a, b, tiny = np.float32(0.9), np.float32(0.99), np.float32(1e-8)
    for i in nb.prange(n):
        for k in range(dim):
            g = G[i, k]
            moments[0, i, k] = a * moments[0, i, k] + (1 - a) * g
            moments[1, i, k] = b * moments[1, i, k] + (1 - b) * g * g
            H[i, k] -= scale * moments[0, i, k] / (np.sqrt(moments[1, i, k]) + tiny)
