"""Values that a model computes from known tensors alone, as numbers, while torch.export traces it with shapes only.

torch.export holds weights, buffers and constants as tensors without values: a mask kept in a buffer has no number of
true places, and `if self.flag` no branch. Both are known when a model is traced. So each call whose tensors are all
known is also run on their numbers, and calls that read numbers (`int(buffer)`, `x[:, mask]`, `mask.nonzero()`) get
them. Anything that depends on an input is left to torch.export.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

# Calls that torch.export cannot do without numbers: they leave torch, or the numbers decide how long the result is.
_READS = frozenset(
    {
        *("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__"),
        *("equal", "allclose", "is_nonzero", "nonzero", "argwhere", "masked_select", "repeat_interleave", "unique"),
        *("unique_consecutive", "bincount", "one_hot", "arange", "combinations"),
    }
)
# The error that stops one_hot of unknown indices, unless it has the number of classes.
UNCOUNTED = "one_hot counts the classes of what is not known"
# Known tensors of more elements than this are not computed a second time.
_MOST = 1 << 20


@contextlib.contextmanager
def numbers_known(model: torch.nn.Module) -> Iterator[None]:
    """Within this context, calls on known tensors have numbers wherever torch.export traces the model's `forward`."""
    known, original = Known(model), model.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with known:
            return original(*args, **kwargs)

    had = model.__dict__.get("forward")
    model.forward = forward
    try:
        yield
    finally:
        del model.__dict__["forward"]
        if had is not None:
            model.forward = had


class Known(TorchFunctionMode):
    """Within this context, calls on the model's known tensors have numbers; `model` is the module that is exported."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.held = dict(_tensors(model))
        # By identity: the tensor that stands for known numbers (held, so that its identity is not reused), and these.
        self.numbers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # The tensors that torch.export has put in place of parameters and buffers, by identity, with their paths.
        self.placed: dict[int, tuple[torch.Tensor, str]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            # Without gradients this is the same: the values, in the same memory.
            func, name = torch.Tensor.detach, "detach"
        if name in ("__get__", "__set__", "size", "stride", "storage_offset", "dim"):
            return func(*args, **named)
        mapped = torch._C._functorch.maybe_current_level() is not None or "functorch" in str(
            getattr(func, "__module__", "")
        )
        if mapped or isinstance(func, torch._ops.OpOverload):
            # torch's own calls, while it makes shapes of tensors; in torch.vmap a tensor is one of a batch.
            return func(*args, **named)
        tensors = [leaf for leaf in pytree.tree_leaves((args, named)) if isinstance(leaf, torch.Tensor)]
        if all(self._known(tensor) is not None for tensor in tensors):
            if tensors and (name in _READS or (name == "where" and len(tensors) == 1)):
                read = self._computed(func, args, named)
                return func(*args, **named) if read is None else read[0]
            # A tensor that is written to in place has other numbers afterwards, and is written to only once.
            result = func(*args, **named)
            leaves = pytree.tree_leaves(result)
            if name == "__setitem__" or any(isinstance(leaf, torch.Tensor) for leaf in leaves):
                made = self._computed(func, args, named)
                if made is None:
                    for leaf in (*tensors[:1], *leaves):
                        self._forget(leaf)
                else:
                    self._record(result, made[0])
            return result
        if name == "one_hot" and max([*args[1:], *named.values()], default=-1) == -1:
            raise RuntimeError(UNCOUNTED)
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
            self._forget(args[0])
        for tensor in pytree.tree_leaves(named.get("out")):
            self._forget(tensor)
        written = self._by_places(name, args, named)
        return func(*args, **named) if written is None else written()

    # ------------------------------------------------------------------ numbers

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The numbers that a tensor stands for, or None."""
        entry = self.numbers.get(id(tensor))
        if entry is not None:
            return entry[1]
        if type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not torch._is_functional_tensor(
            tensor
        ):
            found: torch.Tensor | None = tensor
        else:
            found = self._weight(tensor)
        if found is None or found.is_meta or found.numel() > _MOST:
            return None
        with _disable_current_modes(), torch.no_grad():
            # A copy: later in-place writes must not change the model.
            copied = found.detach().clone()
        self.numbers[id(tensor)] = (tensor, copied)
        return copied

    def _weight(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The parameter or buffer that torch.export has replaced by this tensor."""
        first = next(iter(_tensors(self.model)), None)
        if first is not None and id(first[1]) not in self.placed:
            self.placed = {id(now): (now, path) for path, now in _tensors(self.model)}
        path = self.placed.get(id(tensor), (None, ""))[1]
        return self.held.get(path)

    def _computed(self, func: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any] | None:
        """The result of the call on numbers; None if it draws random numbers, or does not run."""

        def number(leaf: Any) -> Any:
            return self._known(leaf) if isinstance(leaf, torch.Tensor) else leaf

        given, named = pytree.tree_map(number, (tuple(args), dict(kwargs)))
        with _disable_current_modes(), torch.no_grad():
            before = torch.get_rng_state()
            try:
                made = func(*given, **named)
            except Exception:
                # Whatever the error, torch.export meets it too, and reports it with the user's line.
                return None
            if not torch.equal(before, torch.get_rng_state()):
                torch.set_rng_state(before)
                return None
        return (made,)

    def _record(self, result: Any, made: Any) -> None:
        pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(made), strict=False)
        for tensor, numbers in pairs:
            if isinstance(tensor, torch.Tensor) and isinstance(numbers, torch.Tensor) and numbers.numel() <= _MOST:
                self.numbers[id(tensor)] = (tensor, numbers)

    def _forget(self, tensor: Any) -> None:
        """Forget the numbers of a tensor to which unknown values are written, and of all that share its memory."""
        entry = self.numbers.get(id(tensor))
        if entry is not None:
            memory = entry[1].untyped_storage().data_ptr()
            for key, (_, numbers) in list(self.numbers.items()):
                if numbers.untyped_storage().data_ptr() == memory:
                    del self.numbers[key]

    # ------------------------------------------------------------------ known masks of unknown tensors

    def _by_places(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], Any] | None:
        """The call with a known mask replaced by the indices where it is true; None if it has no such mask."""
        given = dict(zip(("self", "first", "second"), args, strict=False))
        x = given.get("self", kwargs.get("input"))
        if not isinstance(x, torch.Tensor):
            return None
        if name in ("__getitem__", "__setitem__", "index_put", "index_put_") and "first" in given:
            index = self._index(x, given["first"])
            if index is None:
                return None
            method: Any = getattr(torch.Tensor, name)
            return lambda: method(x, index, *args[2:], **kwargs)
        mask = self._maybe(given.get("first", kwargs.get("mask", kwargs.get("repeats"))))
        if name == "masked_select" and mask is not None and mask.dtype == torch.bool:
            return self._selected(x, mask)
        dim = given.get("second", kwargs.get("dim"))
        if name == "repeat_interleave" and mask is not None and isinstance(dim, int) and mask.ndim == 1:
            with _disable_current_modes():
                repeats = np.resize(mask.numpy(), x.shape[dim])
                places = torch.from_numpy(np.repeat(np.arange(x.shape[dim]), repeats))
            return lambda: x.index_select(dim, places)
        return None

    def _maybe(self, value: Any) -> torch.Tensor | None:
        """The numbers of a tensor, of an array or of a list of truth values, where they are known."""
        if isinstance(value, torch.Tensor):
            return self._known(value)
        array = np.asarray(value) if isinstance(value, list | np.ndarray) and not _holds_tensors(value) else None
        if array is None or array.dtype != bool or not array.ndim:
            return None
        with _disable_current_modes():
            return torch.from_numpy(array.copy())

    def _index(self, x: torch.Tensor, index: Any) -> Any:
        """An index with places for each known mask, and numbers for known ends of slices; None where it has neither."""
        items = list(index) if isinstance(index, tuple | list) and not _is_mask(index) else [index]
        if any(isinstance(item, bool) for item in items):
            return None
        made: list[Any] = []
        changed, axis = False, 0
        taken = sum(self._axes(item) for item in items if item is not None and item is not Ellipsis)
        for item in items:
            if isinstance(item, slice):
                ends = [self._end(end) for end in (item.start, item.stop, item.step)]
                changed = changed or any(
                    a is not b for a, b in zip(ends, (item.start, item.stop, item.step), strict=True)
                )
                item = slice(*ends)
            mask = None if isinstance(item, int | slice) or item is None or item is Ellipsis else self._maybe(item)
            if mask is not None and mask.dtype == torch.bool and mask.ndim:
                if tuple(mask.shape) != tuple(x.shape[axis : axis + mask.ndim]):
                    return None  # torch reports the error in it
                made.extend(places_of(mask))
                changed = True
            else:
                made.append(item)
            axis += x.ndim - taken if item is Ellipsis else 0 if item is None else self._axes(item)
        return tuple(made) if changed else None

    def _axes(self, item: Any) -> int:
        """How many axes an item of an index stands for."""
        mask = None if isinstance(item, int | slice) else self._maybe(item)
        if mask is None and isinstance(item, torch.Tensor) and item.dtype == torch.bool:
            return item.ndim
        return mask.ndim if mask is not None and mask.dtype == torch.bool else 1

    def _end(self, end: Any) -> Any:
        numbers = self._known(end) if isinstance(end, torch.Tensor) else None
        return end if numbers is None else int(numbers)

    def _selected(self, x: torch.Tensor, mask: torch.Tensor) -> Callable[[], Any] | None:
        """`masked_select` by the same mask for each entry of the leading axes, which stay together."""
        if mask.ndim > x.ndim:
            return None
        with _disable_current_modes():
            shape = (1,) * (x.ndim - mask.ndim) + tuple(mask.shape)
            leading = next((axis for axis, size in enumerate(shape) if size != 1), x.ndim - 1)
            if any(size not in (1, whole) for size, whole in zip(shape, x.shape, strict=True)):
                return None
            places = places_of(mask.reshape(shape[leading:]).expand(x.shape[leading:]))
        index: Any = (*(slice(None),) * leading, *places)
        return lambda: x[index].reshape(-1)


def places_of(mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The indices where a known mask is true, one array for each of its axes."""
    with _disable_current_modes():
        return tuple(mask.nonzero(as_tuple=True))


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by path, shared ones under each of their paths."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _is_mask(index: Any) -> bool:
    """Whether an index is one mask, written as a list of truth values."""
    return isinstance(index, list) and all(isinstance(item, bool) or _is_mask(item) for item in index)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, torch.Tensor) or _holds_tensors(item) for item in value)
