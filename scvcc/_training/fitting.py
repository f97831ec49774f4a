"""Fitting the encoder to the coordinates, and how an encoder learns: noise, mini-batches, optimizer."""

from contextlib import nullcontext
from functools import partial
from itertools import count

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from scvcc._training.checkpoint import Arrays, as_bytes, from_bytes
from scvcc._training.encoder import INPUT_NOISE, Encoder, Rows
from scvcc._training.losses import weighted_total
from scvcc._training.monitor import mean_losses
from scvcc._training.ranks import gathered, own_slice, sum_gradients
from scvcc._training.run import Run
from scvcc._training.settings import Settings


def fit_encoder(encoder: Encoder, rows: Rows, H: np.ndarray, n_clusters: int, run: Run) -> None:
    """Teach the encoder the coordinates by regression from noisy input."""
    rng = run.rng("encoder")
    learner, target = Learner(encoder, rows, rng), torch.from_numpy(H).to(rows.device)
    n_steps, settings = encoder_steps(len(rows), n_clusters, run.settings), run.settings
    step = restore(run.checkpoint.kept("encoder"), rng, learner.optimizer)

    def learn(batch: Tensor, step: int) -> dict[str, Tensor]:
        # beyond .1, errors count by size, not by square: a rare cluster is not drawn to a common one near it
        error = smooth_l1_loss(learner(batch), target[batch], beta=0.1)
        rate = settings.learning_rate * (1 - 0.95 * step / n_steps)
        return take_step("encoder", {"anchor": error}, run, rate, learner.optimizer)

    while step < n_steps:
        batches = shuffled_batches(len(rows), settings.batch_size, rng, rows.device)[: n_steps - step]
        losses = mean_losses(map(learn, batches, count(step)))
        step += len(batches)
        run.monitor.record("encoder", step, losses)
        run.keep("encoder", partial(state_of, step, rng, learner.optimizer))


def take_step(
    stage: str, terms: dict[str, Tensor], run: Run, rate: float, *optimizers: torch.optim.Optimizer, beta: float = 0.0
) -> dict[str, Tensor]:
    """One step of the optimizers down the weighted total of some losses; returns the losses and their total."""
    terms["total"] = weighted_total(terms, run.settings.weights, beta)
    for optimizer in optimizers:
        optimizer.zero_grad()
    terms["total"].backward()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    run.monitor.advance(stage)
    return terms


def state_of(step: int, rng: Generator, *optimizers: torch.optim.Optimizer) -> Arrays:
    """What learning resumes from: the weights, what the optimizers remember of them, and the random numbers."""
    arrays = {"step": np.array(step), "rng": as_bytes(rng.bit_generator.state)}
    for i, optimizer in enumerate(optimizers):
        remembered = optimizer.state_dict()["state"]
        for j, weights in enumerate(_weights(optimizer)):
            tensors = {"weights": weights, **remembered.get(j, {})}
            arrays |= {f"{i}.{j}.{name}": tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    return arrays


def restore(state: Arrays, rng: Generator, *optimizers: torch.optim.Optimizer) -> int:
    """Resume from what `state_of` returned, if anything; returns the step."""
    if not state:
        return 0
    rng.bit_generator.state = from_bytes(state["rng"])
    for i, optimizer in enumerate(optimizers):
        remembered: dict[int, dict[str, Tensor]] = {}
        for j, weights in enumerate(_weights(optimizer)):
            own = f"{i}.{j}."
            tensors = {name.removeprefix(own): torch.tensor(a) for name, a in state.items() if name.startswith(own)}
            with torch.no_grad():
                weights.copy_(tensors.pop("weights"))
            remembered |= {j: tensors} if tensors else {}
        optimizer.load_state_dict({**optimizer.state_dict(), "state": remembered})
    return int(state["step"])


def _weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weights for group in optimizer.param_groups for weights in group["params"]]


def encoder_steps(
    n: int, n_clusters: int, settings: Settings, *, least: int = 300, each: int = 15, epochs: int = 4
) -> int:
    """Steps of the regression on `n` rows: with fewer, new points land farther from where they belong.

    Every cluster is a place of its own to learn: the steps grow with them beyond 20.
    """
    return max(least, each * n_clusters, epochs * settings.n_batches(n))


def shuffled_batches(n: int, batch_size: int, rng: Generator, device: torch.device) -> list[Tensor]:
    """Random batches that cover all rows once, as index tensors on the device."""
    return list(torch.from_numpy(rng.permutation(n)).to(device).split(batch_size))


class Learner:
    """The encoder in training: it reads rows with Gaussian noise, so that new points land nearer to where they belong.

    Noise is drawn from a stock of rows on the device, which needs no random generator there; the stock holds the shift of
    the standardization too, so that both take one pass over a batch. Hidden layers run in bfloat16 where that is fast.
    """

    def __init__(self, encoder: Encoder, rows: Rows, rng: Generator, noise: float = INPUT_NOISE) -> None:
        self.encoder, self.rows, self._rng = encoder, rows, rng
        n_features = len(encoder.center)
        n_stock = min(1024, max(2**22 // n_features, 1))  # 16 MB at most
        stock = noise * rng.standard_normal((n_stock, n_features), dtype=np.float32)
        self._stock = torch.from_numpy(stock).to(rows.device) - encoder.center / encoder.scale
        self._factor = 1 / float(encoder.scale)
        self._half_precision = has_fast_bfloat16(rows.device)
        fused = rows.device.type in ("cpu", "cuda")  # one kernel, where the device has it
        self.optimizer = torch.optim.AdamW(encoder.parameters(), weight_decay=5e-4, fused=fused)
        sum_gradients(encoder, self.optimizer)

    def __call__(self, batch: Tensor) -> Tensor:
        """Embedding of the rows of a batch with noise."""
        mine, device = own_slice(len(batch)), self.rows.device
        drawn = torch.from_numpy(self._rng.integers(len(self._stock), size=len(batch)))
        z = self.noisy(self.rows[batch[mine]], drawn[mine])
        with torch.autocast(device.type, torch.bfloat16) if self._half_precision else nullcontext():
            features = self.encoder.hidden(z)
        return gathered(self.encoder.head(features.float()), len(batch))

    def noisy(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Standardized rows with the noise of these numbers."""
        return self._stock[drawn.to(x.device)].add_(x, alpha=self._factor)


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices faster than float32 ones."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return False
