"""Free coordinates: the losses of VCC minimized over the points themselves, before any network is trained.

Method of auxiliary coordinates (Carreira-Perpiñán & Vladymyrov 2015). Full-batch Adam in compiled code: each point
gathers the forces of its edges, of a few random disconnected points and of the centers, so that no two threads write
to the same place and the result does not depend on their number.
"""

from dataclasses import dataclass, field

import numba as nb
import numpy as np
import scipy.sparse as sp

from scvcc._clusters.compiled import compiled
from scvcc._training.graph import entry_rows
from scvcc._training.losses import DISTANCE_FLOOR
from scvcc._training.sampling import boundary_rates, contraction_rates
from scvcc._training.settings import MAP_EPOCHS, Settings, beta
from scvcc._training.threads import threads_for

ANY_ORDER = {"reassoc", "contract"}  # sums may be taken in any order: without it, loops over them are not vectorized
OUT_OF_REACH = 15.0  # e⁻¹⁵: repulsion beyond this distance is lost in rounding
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
        gradient = np.zeros_like(self.H)
        _add_gradient(self.H, gradient, *self._edges, forces, np.uint64(self.seed * self.total_steps + self.step))
        rate = self.learning_rate * (1 - self.progress) + 1e-4
        if len(self.centers):
            self._pull_to_centers(gradient, rate)
        self.step += 1
        adam_step(self.H, gradient, self._moments, self.step, rate)

    def _pull_to_centers(self, gradient: np.ndarray, rate: float) -> None:
        """Add the clustering loss to `gradient` and move the centers, by plain gradient: Adam makes them drift."""
        weight = self.beta * self.settings.weights["clustering"]
        frequencies, pull = add_clustering_gradient(self.H, self.centers, self._frequencies, gradient, weight)
        self._frequencies = frequencies + 1e-9
        self.centers -= rate * pull * len(self.centers) / len(self.H)


def add_clustering_gradient(
    H: np.ndarray, centers: np.ndarray, frequencies: np.ndarray, G: np.ndarray, weight: float, chunks: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """Add the gradient of the weighted KL(P ‖ Q) to `G`; returns Σ Q (K,) and the gradient of the centers (K, dim).

    Both are summed over chunks of points, as many for any number of threads, so that the sums do not depend on it.
    """
    by_dimension = np.ascontiguousarray(centers.T, np.float32)  # so that the innermost loops run over the clusters
    new_frequencies = np.zeros((chunks, len(centers)), np.float32)
    pulls = np.zeros((chunks, *by_dimension.shape), np.float32)
    rarity = (1 / frequencies).astype(np.float32)
    _pull_to_centers(H, by_dimension, rarity, np.float32(2 * weight), G, new_frequencies, pulls)
    return new_frequencies.sum(axis=0, dtype=np.float64), pulls.sum(axis=0, dtype=np.float64).T


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


@compiled(parallel=True)
def _add_gradient(H, G, pointers, neighbors, boundary, contraction, forces, seed, n_negatives=5):
    """Add the gradient of the boundary, contraction and expansion losses with respect to each point to `G`.

    `forces` are the weights of the three losses and the share of repulsion; `n_negatives` random pairs push a point. Some
    points at a time, so that their pairs stay in the nearest cache, with one loop for each kind of work. What is not a
    loop over points stays out of parallel functions, which take long to compile.
    """
    n, size = len(H), 64
    for block in nb.prange((n + size - 1) // size):
        begin, end = block * size, min(n, (block + 1) * size)
        own, first, last = pointers[begin : end + 1], pointers[begin], pointers[end]
        _add_edges(H, G, begin, own, neighbors[first:last], boundary[first:last], contraction[first:last], forces)
        if forces[2] > 0:
            _add_strangers(H, G, begin, own, neighbors, forces[2], seed, n_negatives)


@compiled()
def _add_edges(H, G, begin, pointers, others, boundary, contraction, forces):
    force = _squared_distances(H, begin, pointers, others)
    _edge_forces(force, boundary, contraction, forces)
    _pull(H, G, begin, pointers, others, force)


@compiled()
def _add_strangers(H, G, begin, pointers, neighbors, w_e, seed, n_negatives):
    starts, strangers = _draw_strangers(len(H), begin, pointers, neighbors, seed, n_negatives)
    force = _squared_distances(H, begin, starts, strangers)
    _random_forces(force, starts, w_e)
    _pull(H, G, begin, starts, strangers, force)


@compiled(fastmath=ANY_ORDER)
def _squared_distances(H, begin, starts, others):
    """Squared length of each pair: the points from `begin` on, each with its part of `others`."""
    squares, first = np.empty(len(others), np.float32), starts[0]
    for i in range(len(starts) - 1):
        a = H[begin + i]
        for e in range(starts[i] - first, starts[i + 1] - first):
            b = H[others[e]]
            d2 = np.float32(DISTANCE_FLOOR)
            for k in range(len(a)):
                d2 += (a[k] - b[k]) ** 2
            squares[e] = d2
    return squares


@compiled(fastmath=ANY_ORDER, error_model="numpy")
def _edge_forces(squares, boundary, contraction, forces):
    """Squared lengths of edges become what the boundary and contraction losses pull with, over the length."""
    w_b, w_c, repulsion, one = forces[0], forces[1], forces[3], np.float32(1.0)
    for e in range(len(squares)):
        d = np.sqrt(squares[e])
        balance = one - repulsion / (_exp(min(d, np.float32(OUT_OF_REACH))) - one)
        squares[e] = (w_c * contraction[e] + w_b * boundary[e] * balance) / d


@compiled(fastmath=ANY_ORDER, error_model="numpy")
def _random_forces(squares, starts, w_e):
    """Squared lengths of random pairs become what the expansion loss pushes with, over the length."""
    one, reach = np.float32(1.0), np.float32(OUT_OF_REACH)
    for e in range(len(squares)):
        d = np.sqrt(squares[e])
        squares[e] = np.float32(d < reach) / ((_exp(min(d, reach)) - one) * d)
    for i in range(len(starts) - 1):
        # a pair pushes both its ends; here each point collects its own share
        for e in range(starts[i], starts[i + 1]):
            squares[e] *= -2 * w_e / np.float32(starts[i + 1] - starts[i])


@compiled(fastmath=ANY_ORDER)
def _pull(H, G, begin, starts, others, force):
    """Add to the rows of `G` the force of each pair times the difference of its points."""
    first = starts[0]
    for i in range(len(starts) - 1):
        a, g = H[begin + i], G[begin + i]
        for e in range(starts[i] - first, starts[i + 1] - first):
            b = H[others[e]]
            for k in range(len(a)):
                g[k] += force[e] * (a[k] - b[k])


@compiled()
def _draw_strangers(n, begin, pointers, neighbors, seed, n_draws):
    """At most `n_draws` random points for each of those from `begin` on, not itself and not connected, and where they start."""
    golden = np.uint64(0x9E3779B97F4A7C15)  # step of the splitmix64 generator
    starts, strangers = np.zeros(len(pointers), np.int64), np.empty(n_draws * len(pointers), neighbors.dtype)
    drawn = 0
    for i in range(len(pointers) - 1):
        state = _mix(seed * golden + np.uint64(begin + i))
        for _ in range(n_draws):
            state += golden
            j = np.int64(((_mix(state) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))
            if j != begin + i and not _is_among(neighbors, pointers[i], pointers[i + 1], j):
                strangers[drawn] = j
                drawn += 1
        starts[i + 1] = drawn
    return starts, strangers[:drawn]


@compiled()
def _is_among(neighbors, low, high, j):
    """Whether `j` is in neighbors[low:high]; looking at all of them is quicker than a search in the sorted."""
    for e in range(low, high):
        if neighbors[e] == j:
            return True
    return False


@compiled(parallel=True)
def _pull_to_centers(H, centers, rarity, weight, G, frequencies, pulls):
    """The forces between points and centers (dim, K), chunk by chunk."""
    n, n_chunks = len(H), len(frequencies)
    for chunk in nb.prange(n_chunks):
        begin, end = chunk * n // n_chunks, (chunk + 1) * n // n_chunks
        _cluster_forces(H[begin:end], centers, rarity, weight, G[begin:end], frequencies[chunk], pulls[chunk])


@compiled(fastmath=ANY_ORDER, error_model="numpy")
def _cluster_forces(H, centers, rarity, weight, G, frequencies, pulls):
    """Add the pull of the centers to `G`, that of the points to `pulls`, and the soft assignments to `frequencies`."""
    (dim, K), one = centers.shape, np.float32(1.0)
    kernel, force = np.empty(K, np.float32), np.empty(K, np.float32)
    for i in range(len(H)):
        total, normalizer = np.float32(0.0), np.float32(0.0)
        for k in range(K):
            kernel[k] = one
        for x in range(dim):
            for k in range(K):
                kernel[k] += (H[i, x] - centers[x, k]) ** 2
        for k in range(K):
            kernel[k] = one / kernel[k]
            total += kernel[k]
        scale = one / total
        for k in range(K):
            normalizer += (kernel[k] * scale) ** 2 * rarity[k]
        certainty = one / normalizer
        for k in range(K):
            q = kernel[k] * scale
            p = q * q * rarity[k] * certainty
            frequencies[k] += q
            force[k] = weight * kernel[k] * (p - q)
        for x in range(dim):
            pulled = np.float32(0.0)
            for k in range(K):
                pull = force[k] * (H[i, x] - centers[x, k])
                pulled += pull
                pulls[x, k] -= pull
            G[i, x] += pulled


@compiled(parallel=True)
def adam_step(H, G, moments, step, rate):
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
