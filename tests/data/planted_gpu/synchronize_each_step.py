"""The parts of a step are timed with `torch.cuda.synchronize`. `--clean`: nothing is timed."""

import time

import torch
from gpu_training import arguments, batches, network, optimizer_of, train_step
from torch.nn import functional as F


def timed_step(model, optimizer, inputs, labels, times):
    began = time.perf_counter()
    with torch.autocast("cuda", torch.bfloat16):
        outputs = inputs
        for part in model:
            outputs = part(outputs)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        loss = F.cross_entropy(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - began)
    optimizer.step()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - began)


def main():
    args = arguments()
    model = network(blocks=12)
    optimizer = optimizer_of(model)
    times = []
    for inputs, labels in batches(args.seconds, 2048):
        if args.clean:
            train_step(model, optimizer, inputs, labels)
        else:
            timed_step(model, optimizer, inputs, labels, times)


if __name__ == "__main__":
    main()
