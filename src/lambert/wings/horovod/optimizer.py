"""A torch optimizer whose gradients are reduced over the ranks while the backward pass is still running.

`DistributedOptimizer` returns an instance of a new class, which derives from the class of the wrapped optimizer, so
that schedulers, scalers and `isinstance` work as before. The instance shares the state and the parameter groups of the
wrapped optimizer.
"""

import os
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from lambert.wings.horovod.basics import size
from lambert.wings.horovod.compression import Compression, Compressor
from lambert.wings.horovod.gradients import Gradients
from lambert.wings.horovod.operations import (
    Adasum,
    Average,
    allreduce_async_,
    sparse_allreduce_async,
    synchronize,
    wait,
)
from lambert.wings.horovod.process_sets import ProcessSet, global_process_set
from lambert.wings.horovod.requests import Entry

Closure = Callable[[], Any]
_NOT_STEPPED = (
    "optimizer.zero_grad() was called after loss.backward() and before optimizer.step() or optimizer.synchronize(): "
    "the gradients are still being reduced"
)


class _Wrapping(torch.optim.Optimizer):
    _parameter_names: dict[Tensor, str]
    _compression: type[Compressor]
    backward_passes_per_step: int

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a DistributedOptimizer cannot be copied or pickled: copy its state_dict()")


class _Reduced(_Wrapping):
    """The mixin that the new classes add to the wrapped optimizer: it reduces each gradient when it is complete."""

    op: Any
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    _group_of: dict[Tensor, tuple[Tensor, ...]]

    def _start(self) -> None:
        self._should_synchronize = True
        # An elastic job with a single rank may grow.
        self._reduces = self.process_set.included() and (size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1")
        self._trained: list[Tensor] = []
        self._hooks: list[Any] = []
        # Remove the hooks with the optimizer, because a parameter may outlive it.
        weakref.finalize(self, _remove, self._hooks)
        predivide = self.gradient_predivide_factor if self.op == Average else 1.0
        self._gradients = Gradients(self.op, 1.0 / predivide, predivide, self.process_set)
        self._restart()
        self._watch()

    def _watch(self) -> None:
        """Registers hooks for trained parameters without one: at first all, later those that were unfrozen or added."""
        if not self._reduces:
            return
        listed = dict.fromkeys(p for group in self.param_groups for p in group["params"] if p.requires_grad)
        new = [p for p in listed if p not in self._passes_left]
        me = weakref.ref(self)

        def count_pass(parameter: Tensor) -> None:
            optimizer = me()
            if optimizer is not None:
                optimizer._count_pass(parameter)

        if new:
            self._parameter_names = _name_parameters(self, None) | self._parameter_names
        for p in new:
            self._trained.append(p)
            self._incomplete += 1
            self._passes_left[p] = self.backward_passes_per_step
            self._hooks.append(p.register_post_accumulate_grad_hook(count_pass))

    def _restart(self) -> None:
        self._pending: dict[tuple[Tensor, ...], tuple[Any, list[Any]]] = {}
        self._passes_left = dict.fromkeys(self._trained, self.backward_passes_per_step)
        self._incomplete = len(self._trained)
        self._gradients.restart()
        self._synchronized = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes after which gradients are reduced."""
        self.backward_passes_per_step = passes
        self._passes_left = dict.fromkeys(self._trained, passes)
        self._incomplete = len(self._trained)

    def _count_pass(self, parameter: Tensor) -> None:
        left = self._passes_left[parameter] - 1
        if left < 0:
            raise AssertionError(
                f"the gradient of {self._parameter_names[parameter]} was computed more than backward_passes_per_step = "
                f"{self.backward_passes_per_step} times before step(): raise backward_passes_per_step to accumulate"
            )
        self._passes_left[parameter] = left
        self._incomplete -= left == 0
        group = self._group_of.get(parameter, (parameter,))
        if all(self._passes_left.get(p, 0) == 0 for p in group):
            self._reduce(group)
            if self._gradients.is_full or not self._incomplete:
                self._gradients.send()

    def _reduce(self, group: tuple[Tensor, ...]) -> None:
        """Starts the reduction of the gradients of `group`. A gradient that this rank has not computed is zero."""
        for p in group:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        name, first = self._parameter_names[group[0]], group[0].grad
        handle: Any
        if first is not None and first.is_sparse and not self.sparse_as_dense:
            if len(group) > 1:
                raise ValueError(f"{name} has a sparse gradient, and groups need dense ones: pass sparse_as_dense=True")
            handle = sparse_allreduce_async(first, name=name, op=self.op, process_set=self.process_set)
            self._pending[group] = handle, [None]
            return
        sent, contexts = zip(*(self._compression.compress(_dense(p.grad)) for p in group), strict=True)
        own = all(p.grad is tensor for p, tensor in zip(group, sent, strict=True))
        self._pending[group] = self._gradients.start(name, sent, movable=own), list(contexts)

    def synchronize(self) -> None:
        """Waits until all gradients are reduced, for example to apply `clip_grad_norm_` to them.

        Afterwards call `with optimizer.skip_synchronize(): optimizer.step()`.
        """
        self._watch()
        waiting = {p for group in self._pending for p in group}
        for p in self._trained:
            if p not in waiting:
                group = self._group_of.get(p, (p,))
                self._reduce(group)
                waiting.update(group)
        pending, self._pending = self._pending, {}
        for group, (handle, contexts) in pending.items():
            if isinstance(handle, Entry):
                wait(handle)
            outputs = handle.outputs if isinstance(handle, Entry) else [handle()]
            for p, output, context in zip(group, outputs, contexts, strict=True):
                self._store(p, output if output.is_sparse else self._compression.decompress(output, context))
        self._restart()
        self._synchronized = True

    @staticmethod
    def _store(parameter: Tensor, reduced: Tensor) -> None:
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            parameter.grad = reduced if reduced.is_sparse else reduced.to_sparse(parameter.grad.sparse_dim())
        elif reduced.is_sparse:
            parameter.grad = reduced
        elif reduced.data_ptr() != parameter.grad.data_ptr():
            parameter.grad.copy_(reduced)

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Returns a context manager in which `step()` does not reduce the gradients, for use after `synchronize()`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Closure | None = None) -> Any:
        """Waits until the gradients are reduced and performs the optimizer's step. The gradients of a closure are
        reduced too."""
        if self._should_synchronize and closure is None:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): "
                    "the gradients are reduced twice; write `with optimizer.skip_synchronize(): optimizer.step()`",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        evaluate = closure
        if closure is not None and self._should_synchronize:

            def evaluate() -> Any:
                loss = closure()
                self.synchronize()
                return loss

        return super().step(evaluate)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Calls `zero_grad` of the wrapped optimizer. Raises AssertionError while gradients are being reduced."""
        if self._pending:
            raise AssertionError(_NOT_STEPPED)
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """Calls `load_state_dict` of the wrapped optimizer and drops pending reductions."""
        self._restart()
        super().load_state_dict(state_dict)


class _AdasumReduced(_Wrapping):
    """A mixin that steps with the rank's own gradients and reduces the *changes* of the parameters by Adasum (Maleki et
    al., 2020)."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Has no effect: gradients accumulate on the rank until `step`, after any number of backward passes."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Does nothing, because `step` reduces the changes of the parameters."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError, because the parameters of the ranks would diverge."""
        raise AssertionError("skip_synchronize() cannot be used with op=Adasum, which combines the changes in step()")
        yield

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Performs the optimizer's step, and changes every parameter by the Adasum of the ranks' changes."""
        trained = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [p.detach().clone() for p in trained]
        loss = super().step(closure)
        pending = []
        self._parameter_names = _name_parameters(self, None) | self._parameter_names
        for p, start in zip(trained, before, strict=True):
            sent, context = self._compression.compress(p.detach() - start)
            pending.append((allreduce_async_(sent, name=self._parameter_names[p], op=Adasum), context))
        for p, start, (handle, context) in zip(trained, before, pending, strict=True):
            p.copy_(start + self._compression.decompress(synchronize(handle), context))
        return loss


def _dense(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return grad.to_dense() if grad.is_sparse else grad.contiguous()


def _derive(optimizer: torch.optim.Optimizer, mixin: type[_Wrapping], **attributes: Any) -> Any:
    """Returns an instance of a class that derives from the mixin and the optimizer's class, with the optimizer's state
    and these attributes of the mixin."""
    own = type(optimizer)
    wrapped: Any = object.__new__(type(own.__name__, (mixin, own), {}))
    # An existing scheduler has set a `step` attribute that is bound to the optimizer without reduction.
    wrapped.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    wrapped.__dict__.update(attributes)
    return wrapped


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns an optimizer whose `step()` uses gradients reduced over the ranks. Do not use `optimizer` afterwards.

    Args:
        optimizer: The optimizer to wrap.
        named_parameters: The names by which ranks match their gradients, such as `model.named_parameters()`.
        compression: `Compression.none`, `.fp16` or `.bf16`, or a custom `Compressor`.
        backward_passes_per_step: Number of backward passes whose gradients are accumulated before the reduction.
        op: `Average`, `Sum` or `Adasum`. Adasum reduces the ranks' steps instead of their gradients.
        gradient_predivide_factor: The part of the division by the number of ranks that is done before the sum, which
            avoids overflow in half precision. With `Average` only.
        num_groups: Deprecated name of `groups`.
        groups: Gradients to reduce together, when all of a group are complete: the number of groups of adjacent
            parameters, or lists of parameters. Parameters in no list are reduced alone.
        sparse_as_dense: Reduce sparse gradients as dense tensors.
        process_set: The ranks to reduce over. Other ranks step with their own gradients.

    Raises:
        TypeError: `optimizer` is not a torch optimizer.
        ValueError: Names are missing or repeated, groups overlap, `gradient_predivide_factor` is used with an op other
            than `Average`, or `backward_passes_per_step` is below 1.
        NotImplementedError: Adasum is used with a process set.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"DistributedOptimizer takes a torch optimizer, such as torch.optim.SGD(model.parameters(), lr=0.1), "
            f"not a {type(optimizer).__name__}; pass the model's names as named_parameters=model.named_parameters()"
        )
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor works with op=Average only")
    if backward_passes_per_step <= 0:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}")
    if num_groups:
        warnings.warn("num_groups is now called groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    names = _name_parameters(optimizer, named_parameters)
    adasum = op == Adasum and size() > 1
    if adasum and process_set != global_process_set:
        raise NotImplementedError("Adasum works over all ranks only, not over a process set")
    common = {
        "_parameter_names": names, "_compression": compression, "backward_passes_per_step": backward_passes_per_step,
    }  # fmt: skip
    if adasum:
        return _derive(optimizer, _AdasumReduced, **common)
    group_of = {p: tuple(group) for group in _divide_parameters(optimizer, groups) for p in group}
    wrapped = _derive(
        optimizer, _Reduced, **common, op=op, gradient_predivide_factor=gradient_predivide_factor,
        sparse_as_dense=sparse_as_dense, process_set=process_set, _group_of=group_of,
    )  # fmt: skip
    wrapped._start()
    return wrapped


def _name_parameters(optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, Tensor]] | None) -> dict[Tensor, str]:
    """Returns the names of all parameters: those of `named`, or without `named`, their positions in the optimizer.

    Raises:
        ValueError: Names are missing or occur twice, or `named` does not contain (name, parameter) pairs.
    """
    groups = enumerate(optimizer.param_groups)
    own = {p: f"allreduce.noname.{i}.{j}" for i, group in groups for j, p in enumerate(group["params"])}
    if named is None:
        return own
    pairs = list(named)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters takes (name, parameter) pairs, such as model.named_parameters()")
    twice = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if twice:
        raise ValueError(f"named_parameters contains these names more than once: {', '.join(twice)}")
    names = {p: name for name, p in pairs}
    missing = [tuple(p.shape) for p in own if p not in names]
    if missing:
        raise ValueError(
            f"named_parameters lacks {len(missing)} of the optimizer's {len(own)} parameters; the first has the shape "
            f"{missing[0]}: pass the names of the whole model, or none"
        )
    return names


def _divide_parameters(optimizer: torch.optim.Optimizer, groups: int | list[list[Tensor]] | None) -> list[list[Tensor]]:
    """Returns the groups of trained parameters: `groups` runs of adjacent parameters if `groups` is a number, the given
    lists if it is a list, and no groups if it is None.

    Raises:
        ValueError: The number is below 1, a list contains something other than tensors, or a parameter occurs twice.
    """
    if groups is None:
        return []
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if isinstance(groups, int):
        if groups < 1:
            raise ValueError(f"groups must be a positive number or a list of lists of tensors, not {groups}")
        share, more = divmod(len(trained), groups)
        ends = [(i + 1) * share + min(i + 1, more) for i in range(groups)]
        return [trained[start:end] for start, end in pairwise([0, *ends]) if end > start]
    listed = [p for group in groups for p in group]
    if any(not isinstance(p, Tensor) for p in listed):
        raise ValueError("groups takes lists of tensors")
    if len(set(listed)) < len(listed):
        raise ValueError("groups contain a parameter more than once")
    known = set(trained)
    return [own for group in groups if (own := [p for p in group if p in known])]
