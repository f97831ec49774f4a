"""The encoder: an MLP from the input features to the embedding, the rows it reads, and what it makes of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.preprocessing import StandardScaler
from sklearn.utils import gen_batches
from torch import Tensor, nn

from scvcc._training.graph import Matrix
from scvcc._training.settings import BLOCK

INPUT_NOISE = 0.3  # in training, relative to the scale of the input
EARLY = 2  # hidden layer that novelty is sought in: the first knows no clusters, the last little else


class Encoder(nn.Module):
    """Multi-layer perceptron with ReLU units that centers and scales its input.

    The weights are drawn from `generator`, so that building one leaves torch's global random state alone.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, n_features: int, hidden: Sequence[int], latent_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.sizes = [n_features, *hidden, latent_dim]
        *layers, head = (_linear(*sizes, generator) for sizes in pairwise(self.sizes))
        self.hidden, self.head = nn.Sequential(*(unit for layer in layers for unit in (layer, nn.ReLU()))), head
        self.register_buffer("center", torch.zeros(n_features))
        self.register_buffer("scale", torch.ones(()))

    def standardize(self, X: Matrix, graph: sp.csr_matrix) -> None:
        """Take the mean of each feature and the overall spread around it from `X`.

        Groups of points that lie far apart make the spread large and what is inside them small: the scale is no larger
        than makes the noise in training as large as the distance to a typical neighbor.
        """
        mean, spread = _moments(X)
        typical = _neighbor_distance(X, graph) / INPUT_NOISE
        scale = min(spread, typical) if typical > 0 else spread
        self.center.copy_(torch.from_numpy(mean.astype(np.float32)))
        self.scale.fill_(scale if scale > 0 else 1.0)

    @classmethod
    def of(cls, sizes: Sequence[int], arrays: Mapping[str, np.ndarray]) -> Self:
        """An encoder on the CPU with layers of these sizes and the weights in `arrays`."""
        encoder = cls(sizes[0], sizes[1:-1], sizes[-1], torch.Generator())
        encoder.load_state_dict({name: torch.tensor(arrays[name]) for name in encoder.state_dict()})
        return encoder

    def arrays(self) -> dict[str, np.ndarray]:
        """The weights, and what the input is centered and scaled with."""
        return {name: value.detach().cpu().numpy() for name, value in self.state_dict().items()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to other processes as plain arrays, since they may lack the device."""
        return _arrived, (self.sizes, self.arrays(), self.center.device.type)

    def forward(self, x: Tensor) -> Tensor:
        """Embedding of a batch."""
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Last hidden layer of a batch."""
        return self.hidden((x - self.center) / self.scale)

    def first_layer(self, x: Tensor) -> Tensor:
        """First hidden layer of a batch."""
        return self.hidden[:2]((x - self.center) / self.scale)

    def early_features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Second hidden layer of a batch, or the last if there are fewer, and the embedding that follows from it."""
        early = self.hidden[: 2 * EARLY]((x - self.center) / self.scale)
        return early, self.head(self.hidden[2 * EARLY :](early))


def _arrived(sizes: Sequence[int], arrays: Mapping[str, np.ndarray], device: str) -> Encoder:
    return Encoder.of(sizes, arrays).to("cuda" if device == "cuda" and torch.cuda.is_available() else "cpu")


def _linear(fan_in: int, fan_out: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out)
    bound = 1 / math.sqrt(fan_in)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def _moments(X: Matrix) -> tuple[np.ndarray, float]:
    """Mean of each feature, and the root mean square of X less those means, in float64 and block by block."""
    scaler = StandardScaler(with_mean=not sp.issparse(X))
    for rows in gen_batches(X.shape[0], 8 * BLOCK):
        scaler.partial_fit(X[rows])
    return scaler.mean_, math.sqrt(scaler.var_.mean())


def _neighbor_distance(X: Matrix, graph: sp.csr_matrix, n_edges: int = 500) -> float:
    """Median length of some edges of the graph, as a root mean square over the features."""
    entries = np.unique(np.linspace(0, graph.nnz - 1, n_edges, dtype=np.int64))
    heads = np.searchsorted(graph.indptr, entries, side="right") - 1
    difference = X[heads] - X[graph.indices[entries]]
    squares = difference.multiply(difference) if sp.issparse(difference) else np.square(difference, dtype=np.float64)
    return float(np.median(np.sqrt(np.asarray(squares.mean(axis=1), np.float64))))


def early_width(sizes: Sequence[int]) -> int:
    """Width of the early layer of an encoder whose layers, input and output included, have these sizes."""
    return sizes[min(EARLY, len(sizes) - 2)]


class Rows:
    """Rows of a matrix as dense float32 tensors on a device.

    A dense matrix is moved to the device once. A sparse one stays on the host as CSR; only the rows asked for are
    made dense.
    """

    def __init__(self, X: Matrix, device: torch.device) -> None:
        self.device = device
        self._rows = sp.csr_matrix(X) if sp.issparse(X) else torch.from_numpy(_writable_float32(X)).to(device)
        self.shape = X.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        if isinstance(self._rows, Tensor):
            return self._rows[index]
        dense = self._rows[index.cpu().numpy()].toarray()
        return torch.from_numpy(dense.astype(np.float32, copy=False)).to(self.device)


def _writable_float32(X: Matrix) -> np.ndarray:
    """`X` as C-ordered float32; copied only where needed (torch warns about read-only memory)."""
    array = np.ascontiguousarray(X, dtype=np.float32)
    return array if array.flags.writeable else array.copy()


@torch.no_grad()
def encode(encoder: Encoder, rows: Rows) -> Tensor:
    """Embedding (n, latent_dim)."""
    return torch.cat([encoder(x)[:size] for x, size in _full_blocks(rows)])


@torch.no_grad()
def encode_with_features(encoder: Encoder, rows: Rows, projection: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Embedding, and projected early hidden layer."""
    onto = torch.from_numpy(projection).to(rows.device)
    H, Z = [], []
    for x, size in _full_blocks(rows):
        features, embedding = encoder.early_features(x)
        H.append(embedding[:size].cpu().numpy())
        Z.append((features @ onto)[:size].cpu().numpy())
    return np.concatenate(H), np.concatenate(Z)


@torch.no_grad()
def encode_first_layer(encoder: Encoder, rows: Rows, weights: np.ndarray | None = None) -> np.ndarray:
    """First hidden layer, (n, width), or the product with `weights`."""
    onto = None if weights is None else torch.from_numpy(weights).to(rows.device)
    blocks = ((encoder.first_layer(x), size) for x, size in _full_blocks(rows))
    return np.concatenate([(z if onto is None else z @ onto)[:size].cpu().numpy() for z, size in blocks])


def _full_blocks(rows: Rows) -> Iterator[tuple[Tensor, int]]:
    """Rows in blocks of one size, and how many rows there are in each: the last is filled up with zeros.

    Matrix products of another shape round differently, and the embedding of a cell must not depend on the cells it comes
    with.
    """
    for block in gen_batches(len(rows), BLOCK):
        x = rows[torch.arange(block.start, block.stop, device=rows.device)]
        yield nn.functional.pad(x, (0, 0, 0, BLOCK - len(x))), len(x)
