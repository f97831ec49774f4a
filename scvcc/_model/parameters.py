"""What the user chose, checked before anything is computed."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, get_type_hints

import torch

from scvcc._model.checks import Limits, check_arguments, check_integer, check_limits
from scvcc._model.files import writable
from scvcc._training.checkpoint import Checkpoint
from scvcc._training.settings import Settings, resolve_weights

if TYPE_CHECKING:
    from scvcc._model.vcc import VCC


def checked_settings(model: VCC, n: int) -> Settings:
    """The settings of training on `n` rows; refuses what cannot work."""
    limits: dict[str, Limits] = dict.fromkeys(("min_cluster_size", "batch_size", "n_pcs"), 1)
    limits |= dict.fromkeys(("latent_dim", "hidden"), (1, 2**16))  # two wider layers would take more than 16 GB
    limits |= {
        "n_neighbors": 2,
        "batch_strength": (0, 1),
        "n_jobs": (-1, 10_000),
        "learning_rate": (0, 10),
        "loss_weights": 0,
    }
    limits["epochs"] = 1 if model.objective == "paper" else 0
    check_arguments(model.get_params(), get_type_hints(type(model)), limits)
    if model.n_clusters is not None:
        check_integer("n_clusters", model.n_clusters, (2, n), f"there are {n} rows")
    if model.max_train_cells is not None and model.max_train_cells < n:
        check_limits("max_train_cells", model.max_train_cells, max(model.n_neighbors, model.n_clusters or 2))
    for name in ("n_jobs", "learning_rate"):
        if getattr(model, name) == 0:
            raise ValueError(f"{name} must not be 0.")
    chosen = {field.name: getattr(model, field.name) for field in fields(Settings) if field.name != "weights"}
    return Settings(**chosen, weights=resolve_weights(model.objective, model.loss_weights))


def opened_checkpoint(model: VCC) -> Checkpoint:
    """The model's checkpoint, with what an earlier fit left in it; refuses a file that is not a checkpoint."""
    return Checkpoint(None if model.checkpoint is None else writable(model.checkpoint))


def resolve_device(device: str | torch.device) -> torch.device:
    """The torch device that `device` asks for; "auto" is CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.ones(1, device=resolved).cpu()
        if resolved.type == "cpu" and resolved.index:
            raise RuntimeError("there is one CPU")
    except (AssertionError, ImportError, RuntimeError, TypeError) as error:  # what torch raises, by the kind of device
        raise ValueError(
            f"device={device!r} cannot be used: torch finds no such device here. Use 'auto', 'cpu', or the name of a GPU "
            "that it finds, such as 'cuda' or 'mps'."
        ) from error
    return resolved
