"""Training on several processes, which `torchrun` starts: each takes its part of every mini-batch.

All of them draw the same mini-batches. Each encodes its slice, all get the embedding of the whole and compute the same
losses, and the gradients of the weights are summed. What is not learned by gradients is left to the first process.
"""

import atexit
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Result = TypeVar("Result")


def join(device: torch.device) -> torch.device:
    """Meet the other processes, if there are any; returns the device that is this one's."""
    if not (dist.is_available() and (dist.is_initialized() or dist.is_torchelastic_launched())):
        return device
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device={str(device)!r} cannot be used by several processes: choose 'cpu' or 'cuda'.")
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        # the others wait while the first one computes; one that has ended is noticed at once
        dist.init_process_group(backend, timeout=timedelta(hours=6))
        atexit.register(_leave)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return device


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process, 0 for the first one or the only one."""
    return dist.get_rank() if _together() else 0


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()


def from_first(compute: Callable[[], Result]) -> Result:
    """What the first process computes, on all of them; so is an error."""
    if not _together():
        return compute()
    box: list[Any] = [None, None]
    if rank() == 0:
        try:
            box[0] = compute()
        except Exception as error:  # noqa: BLE001
            box[1] = error
    _told(dist.broadcast_object_list, box)
    if box[1] is not None:
        raise box[1]
    return box[0]


def check_same(*facts: Any) -> None:
    """Refuse processes that were given different things to train on."""
    first = from_first(lambda: repr(facts))
    if first != repr(facts):
        raise ValueError(
            f"Under torchrun all processes train one model on the same X with the same settings, but the first has {first} "
            f"and process {rank()} has {facts!r}. To fit a model on each, start them without torchrun."
        )


def own_slice(n: int) -> slice:
    """The part of `n` rows that this process encodes."""
    if not _together():
        return slice(0, n)
    size = -(-n // dist.get_world_size())
    return slice(min(rank() * size, n), min((rank() + 1) * size, n))


def gathered(H: Tensor, n: int) -> Tensor:
    """The embedding of all `n` rows from each process's slice; gradients flow back into this process's alone."""
    if not _together():
        return H
    mine = own_slice(n)
    whole = H.new_zeros(n, H.shape[1])
    whole[mine] = H.detach()
    _told(dist.all_reduce, whole)
    return torch.cat([whole[: mine.start], H, whole[mine.stop :]])


def sum_gradients(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """From now on, have the optimizer sum the gradients of `model` over all slices before a step."""

    def summed(*_: Any) -> None:
        gradients = [weights.grad for weights in model.parameters() if weights.grad is not None]
        whole = nn.utils.parameters_to_vector(gradients)
        _told(dist.all_reduce, whole)
        nn.utils.vector_to_parameters(whole, gradients)

    if _together():
        optimizer.register_step_pre_hook(summed)


def _told(collective: Callable[..., Any], *args: Any) -> None:
    """Run a collective operation, and explain the error if another process has ended."""
    try:
        collective(*args)
    except RuntimeError as error:
        raise RuntimeError(
            "Another process of this training has ended: its own message, or that of torchrun, says why. Restart all processes."
        ) from error
