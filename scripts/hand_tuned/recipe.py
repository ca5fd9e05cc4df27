"""What the hand-tuned scripts share: flags for every choice, batches copied ahead, the loop.

Each choice can be switched by a flag, so that variants can be compared in one call. What only pays
on a GPU (compiling, bfloat16, pinning) is off on the CPU unless it is asked for by name.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

MODES = ("off", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
SWITCH = argparse.BooleanOptionalAction
CORES_LEFT = 2
"""For the loop itself and the thread that pins; the other cores load."""


def add_flags(parser: argparse.ArgumentParser, mode: str, loader: bool = True) -> None:
    """The choices of the recipe. `mode`: what torch.compile does on a GPU unless told."""
    parser.add_argument("--mode", choices=MODES, help=f"torch.compile; {mode} on a GPU")
    parser.add_argument("--precision", choices=("bf16", "fp32"), help="bf16 on a GPU")
    parser.add_argument("--tf32", action=SWITCH, default=True, help="float32 on tensor cores")
    parser.add_argument("--fused", action=SWITCH, default=None, help="the fused optimizer")
    parser.add_argument("--copy-ahead", action=SWITCH, default=True, help="on a side stream")
    parser.add_argument("--log-every", type=int, default=50, help="steps between two losses read")
    parser.set_defaults(usual_mode=mode)
    if loader:
        parser.add_argument("--workers", type=int, default=max(1, _cores() - CORES_LEFT))
        parser.add_argument("--prefetch", type=int, default=4, help="batches a worker loads ahead")


def add_image_flags(parser: argparse.ArgumentParser, channels_last: bool) -> None:
    """The choices that only models of images have."""
    parser.add_argument("--channels-last", action=SWITCH, default=channels_last)
    parser.add_argument(
        "--device-transforms", action=SWITCH, default=True, help="bytes travel, not floats"
    )


def settle(options: argparse.Namespace) -> torch.device:
    """Choose what was left open by the device, set torch's switches, and return the device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    options.mode = options.mode or (options.usual_mode if on_gpu else "off")
    options.precision = options.precision or ("bf16" if on_gpu else "fp32")
    options.fused = on_gpu if options.fused is None else options.fused
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = True
    return device


class Objective(nn.Module):
    """Model and loss as one module: compiled and cast together, the loss fuses with the head.

    `prepare` turns a batch of inputs into what the model takes, on the device.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        options: argparse.Namespace,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.prepare = prepare
        self.bf16 = options.precision == "bf16"
        if options.mode != "off":
            self.compile(mode=options.mode)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if self.prepare is not None:
            inputs = self.prepare(inputs)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.bf16):
            return self.loss(self.model(inputs), targets)


def loader(dataset: Any, options: argparse.Namespace, **arguments: Any) -> DataLoader[Any]:
    """A loader whose workers outlive the epoch and whose batches a GPU can fetch by itself."""
    if options.workers:
        arguments |= {"prefetch_factor": options.prefetch, "persistent_workers": True}
    return DataLoader(
        dataset,
        batch_size=options.batch_size,
        num_workers=options.workers,
        pin_memory=torch.cuda.is_available(),
        **arguments,
    )


def as_fetched(batch: Any) -> Any:
    """For data sets that fetch a whole batch at once: there is nothing to collate."""
    return batch


def epochs(batches: Iterable[Any], count: int) -> Iterator[Any]:
    """All batches of so many epochs, with no pause between them."""
    return itertools.chain.from_iterable(batches for _ in range(count))


def train(
    objective: Objective,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    options: argparse.Namespace,
    device: torch.device,
    clip: float | None = None,
) -> None:
    """One step a batch; the host reads the mean loss every `--log-every` steps and waits for
    nothing else. `clip`: the largest norm of all gradients together.
    """
    graphs = options.mode in ("reduce-overhead", "max-autotune")
    running, read, began = torch.zeros((), device=device), 0, time.perf_counter()
    objective.train()
    step = 0
    for inputs, targets in on_device(batches, device, options.copy_ahead):
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        loss = objective(inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(objective.parameters(), clip)
        optimizer.step()
        running += loss.detach()
        step += 1
        if step % options.log_every == 0:
            mean, seconds = running.item() / (step - read), time.perf_counter() - began
            print(f"step {step} loss {mean:.4f} {seconds:.1f} s", flush=True)
            running.zero_()
            read = step
    if step > read:
        print(f"step {step} loss {running.item() / (step - read):.4f}", flush=True)


def on_device(
    batches: Iterable[tuple[Tensor, ...]], device: torch.device, copy_ahead: bool
) -> Iterator[tuple[Tensor, ...]]:
    """The batches on the device; with `copy_ahead` the next one travels during this one's step."""
    if device.type != "cuda" or not copy_ahead:
        for batch in batches:
            yield tuple(tensor.to(device, non_blocking=True) for tensor in batch)
        return
    side = torch.cuda.Stream(device)
    travelling = None
    for batch in batches:
        with torch.cuda.stream(side):
            copies = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
            started = (copies, side.record_event())
        if travelling is not None:
            yield _arrived(*travelling)
        travelling = started
    if travelling is not None:
        yield _arrived(*travelling)


def _arrived(copies: tuple[Tensor, ...], copied: torch.cuda.Event) -> tuple[Tensor, ...]:
    """Let the step wait for its own batch only, and the allocator for the step."""
    stream = torch.cuda.current_stream()
    stream.wait_event(copied)
    for tensor in copies:
        tensor.record_stream(stream)
    return copies


def _cores() -> int:
    return len(os.sched_getaffinity(0))
