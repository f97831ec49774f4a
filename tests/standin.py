"""A pretend accelerator: tensors that say they live on another device, compute on the CPU, and refuse to be mixed.

It finds tensors left on the wrong device. It says nothing about the numerics, memory or speed of a real GPU. It rests
on torch's extension points for third-party devices, which are marked experimental.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "standin"
_setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)
aten = torch.ops.aten
# a real GPU takes these with one argument on the host: copies, and indexing by a host tensor
MIXED_ALLOWED = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}


class StandIn(torch.Tensor):
    """A tensor on the pretend device, with its values in `host`."""

    @staticmethod
    def __new__(cls, host):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
            requires_grad=host.requires_grad,
        )
        tensor.host = host
        return tensor

    def __repr__(self):
        return f"StandIn({self.host!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def compute(func, args, kwargs):
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, StandIn)]
    _refuse_mixture(func, args, tensors, ours)
    stays = _result_is_ours(func, args, kwargs, ours)
    args, kwargs = tree_map_only(StandIn, lambda tensor: tensor.host, (args, kwargs))
    if kwargs.get("device") is not None:
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"} | {
            "device": torch.device("cpu")
        }
    result = func(*args, **kwargs)
    if func is aten._to_copy.default and result is args[0]:
        result = result.clone()
    if not stays:
        return result
    known = {id(tensor.host): tensor for tensor in ours}  # in-place functions return the tensor they were given
    return tree_map_only(
        torch.Tensor, lambda tensor: known[id(tensor)] if id(tensor) in known else StandIn(tensor), result
    )


def _refuse_mixture(func, args, tensors, ours):
    on_host = [tensor for tensor in tensors if not isinstance(tensor, StandIn) and tensor.dim() > 0]
    if ours and on_host and func not in MIXED_ALLOWED:
        raise RuntimeError(f"{func}: tensors on {DEVICE} and on the host in one call")
    if func is aten.index.Tensor and ours and not isinstance(args[0], StandIn):
        raise RuntimeError(f"a host tensor is indexed by a tensor on {DEVICE}")


def _result_is_ours(func, args, kwargs, ours):
    if func is aten.copy_.default:
        return isinstance(args[0], StandIn)
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"]).type == NAME
    return bool(ours)


class standin_device(TorchDispatchMode):
    """While active, the device "standin" exists."""

    def __enter__(self):
        self._before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error):
        torch._C._set_only_lift_cpu_tensors(self._before)
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})
