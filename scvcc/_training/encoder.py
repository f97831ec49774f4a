"""The encoder: an MLP from the input features to the embedding, and the rows it reads, one mini-batch at a time."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.random import Generator

    from scvcc._training.graph import Matrix

BLOCK = 512  # rows per forward pass outside training; always full, see `encode`
INPUT_NOISE = 0.3  # in training, relative to the scale of the input
SCALE_EDGES = 500  # from which it is seen how near neighbors are
NOISE_ROWS, NOISE_NUMBERS = 1024, 2**22  # at most


class Encoder(nn.Module):
    """Multi-layer perceptron with ReLU units that centers and scales its input.

    The weights are drawn from `generator`, so that building one leaves torch's global random state alone.
    """

    center: Tensor
    scale: Tensor

    def __init__(self, n_features: int, hidden: Sequence[int], latent_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        sizes = [n_features, *hidden]
        layers: list[nn.Module] = []
        for fan_in, fan_out in zip(sizes, sizes[1:], strict=False):
            layers += [_linear(fan_in, fan_out, generator), nn.ReLU()]
        self.hidden = nn.Sequential(*layers)
        self.head = _linear(sizes[-1], latent_dim, generator)
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

    def forward(self, x: Tensor) -> Tensor:
        """Embedding of a batch."""
        return self.place((x - self.center) / self.scale)

    def place(self, z: Tensor, *, half_precision: bool = False) -> Tensor:
        """Embedding of a standardized batch; `half_precision` runs the hidden layers in bfloat16, for training."""
        with torch.autocast(z.device.type, torch.bfloat16) if half_precision else nullcontext():
            features = self.hidden(z)
        return self.head(features.float())


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices faster than float32 ones."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return False


def adamw(encoder: Encoder, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over the encoder's weights, in one kernel where the device has it; the rate is set at each step."""
    fused = encoder.center.device.type in ("cpu", "cuda")
    return torch.optim.AdamW(encoder.parameters(), weight_decay=weight_decay, fused=fused)


def _linear(fan_in: int, fan_out: int, generator: torch.Generator) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out)
    bound = 1 / math.sqrt(fan_in)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def _moments(X: Matrix) -> tuple[np.ndarray, float]:
    """Mean of each feature, and the root mean square of X less those means, in float64 and block by block.

    Dense rows are counted from the first one: the squares of large numbers would swallow a small spread.
    """
    n, d = X.shape
    origin = np.zeros(d) if sp.issparse(X) else np.asarray(X[0], np.float64)
    total, squares = np.zeros(d), 0.0
    for rows in _blocks(n, 8 * BLOCK):
        block = X[rows] if sp.issparse(X) else X[rows] - origin
        total += np.asarray(block.sum(axis=0, dtype=np.float64)).ravel()
        squares += float(np.square(block.data if sp.issparse(block) else block, dtype=np.float64).sum())
    mean = total / n
    return origin + mean, math.sqrt(max(squares / (n * d) - float(np.square(mean).mean()), 0.0))


def _neighbor_distance(X: Matrix, graph: sp.csr_matrix) -> float:
    """Median length of some edges of the graph, as a root mean square over the features."""
    entries = np.unique(np.linspace(0, graph.nnz - 1, SCALE_EDGES, dtype=np.int64))
    heads = np.searchsorted(graph.indptr, entries, side="right") - 1
    difference = X[heads] - X[graph.indices[entries]]
    squares = difference.multiply(difference) if sp.issparse(difference) else np.square(difference, dtype=np.float64)
    return float(np.median(np.sqrt(np.asarray(squares.mean(axis=1), np.float64))))


def _blocks(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


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

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        if isinstance(self._rows, Tensor):
            return self._rows[index]
        picked = index if isinstance(index, slice) else index.cpu().numpy()
        return torch.from_numpy(self._rows[picked].toarray().astype(np.float32, copy=False)).to(self.device)


def _writable_float32(X: Matrix) -> np.ndarray:
    """`X` as C-ordered float32; copied only where needed (torch warns about read-only memory)."""
    array = np.ascontiguousarray(X, dtype=np.float32)
    return array if array.flags.writeable else array.copy()


@torch.no_grad()
def encode(encoder: Encoder, rows: Rows) -> Tensor:
    """Embedding (n, latent_dim), in blocks of one size.

    The last block is filled up with zeros: matrix products of another shape round differently, and the place of a cell
    must not depend on the cells it comes with.
    """
    parts = []
    for index in _blocks(len(rows), BLOCK):
        x = rows[index]
        missing = BLOCK - len(x)
        parts.append(encoder(nn.functional.pad(x, (0, 0, 0, missing)))[: len(x)])
    return torch.cat(parts)


@torch.no_grad()
def encode_with_features(
    encoder: Encoder, rows: Rows, projection: np.ndarray, index: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Embedding, and projected hidden layer, of the chosen rows, in blocks of one size as in `encode`."""
    device = encoder.center.device
    chosen, onto = np.arange(len(rows)) if index is None else index, torch.from_numpy(projection).to(device)
    places, hidden = [], []
    for start in range(0, len(chosen), BLOCK):
        x = rows[torch.from_numpy(chosen[start : start + BLOCK]).to(device)]
        padded = nn.functional.pad(x, (0, 0, 0, BLOCK - len(x)))
        features = encoder.hidden((padded - encoder.center) / encoder.scale)
        places.append(encoder.head(features)[: len(x)].cpu().numpy())
        hidden.append((features @ onto)[: len(x)].cpu().numpy())
    return np.concatenate(places), np.concatenate(hidden)


def shuffled_batches(n: int, batch_size: int, rng: Generator, device: torch.device) -> list[Tensor]:
    """Random batches that cover all rows once, as index tensors on the device."""
    return list(torch.from_numpy(rng.permutation(n)).to(device).split(batch_size))


class NoisyInput:
    """Standardizes the input and adds Gaussian noise, for training: new points then land nearer to where they belong.

    Noise is drawn from a stock of rows on the device, which needs no random generator there; the stock holds the shift of
    the standardization too, so that both take one pass over a batch.
    """

    def __init__(self, encoder: Encoder, rng: Generator, size: float = INPUT_NOISE) -> None:
        n_features = len(encoder.center)
        n_rows = min(NOISE_ROWS, max(NOISE_NUMBERS // n_features, 1))
        noise = size * rng.standard_normal((n_rows, n_features), dtype=np.float32)
        self._stock = torch.from_numpy(noise).to(encoder.center.device) - encoder.center / encoder.scale
        self._factor = 1 / float(encoder.scale)
        self._rng = rng

    def __call__(self, x: Tensor) -> Tensor:
        index = torch.from_numpy(self._rng.integers(len(self._stock), size=len(x)))
        return self._stock[index.to(x.device)].add_(x, alpha=self._factor)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
