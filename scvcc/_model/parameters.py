"""What the user chose, checked before anything is computed."""

from __future__ import annotations

import numbers
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np
import torch

from scvcc._model.checks import check_integer, check_share
from scvcc._training.settings import Settings, resolve_weights

if TYPE_CHECKING:
    from scvcc._model.vcc import VCC


def checked_settings(model: VCC, n: int) -> Settings:
    """The settings of training on `n` rows; refuses what cannot work."""
    if model.n_clusters is not None:
        check_integer("n_clusters", model.n_clusters, low=2, high=n, why=f"there are {n} rows")
    least = {"min_cluster_size": 1, "latent_dim": 1, "n_neighbors": 2, "batch_size": 1}
    optional = {"n_pcs": 1, "epochs": 1 if model.objective == "paper" else 0}
    if model.n_jobs != -1:
        optional["n_jobs"] = 1
    optional["max_train_cells"] = max(model.n_neighbors, model.n_clusters or 2)
    for name, low in {**least, **optional}.items():
        if name in least or getattr(model, name) is not None:
            check_integer(name, getattr(model, name), low=low)
    if not isinstance(model.hidden, list | tuple | np.ndarray):
        raise TypeError(f"hidden must be a sequence of layer sizes, such as (500, 500), found {model.hidden!r}.")
    for size in model.hidden:
        check_integer("hidden", size, low=1)
    if not isinstance(model.learning_rate, numbers.Real) or not 0 < model.learning_rate < float("inf"):
        raise ValueError(f"learning_rate must be a number above 0, found {model.learning_rate!r}.")
    check_share("batch_strength", model.batch_strength)
    chosen = {field.name: getattr(model, field.name) for field in fields(Settings) if field.name != "weights"}
    return Settings(**chosen, weights=resolve_weights(model.objective, model.loss_weights))


def resolve_device(device: str) -> torch.device:
    """The torch device that `device` asks for; "auto" is CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device={device!r} is not a torch device: use 'auto', 'cpu', 'cuda' or 'mps'.") from error
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(resolved.type, True):
        kind = "CUDA" if resolved.type == "cuda" else "Apple"
        raise ValueError(f"device={device!r}, but torch finds no {kind} GPU: use device='auto' or 'cpu'.")
    if resolved.type == "meta":
        raise ValueError("device='meta' holds no data: use 'auto', 'cpu', 'cuda' or 'mps'.")
    return resolved
