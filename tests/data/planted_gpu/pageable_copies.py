"""Each batch is copied from pageable memory while the GPU waits. `--clean`: pinned, one ahead."""

import torch
from gpu_training import BATCH, DEVICE, WIDTH, arguments, network, optimizer_of, steps, train_step


def host_batches(seconds, pinned):
    data = [torch.randn(BATCH, WIDTH).bfloat16() for _ in range(2)]
    labels = torch.randint(0, 256, (BATCH,))
    if pinned:
        data, labels = [each.pin_memory() for each in data], labels.pin_memory()
    for step in steps(seconds):
        yield data[step % 2], labels


def one_ahead(batches):
    side, following = torch.cuda.Stream(), None
    for inputs, labels in batches:
        current = following
        with torch.cuda.stream(side):
            following = inputs.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        if current is not None:
            yield current
        torch.cuda.current_stream().wait_stream(side)
        for tensor in following:
            tensor.record_stream(torch.cuda.current_stream())


def main():
    args = arguments()
    model = network(blocks=4)
    optimizer = optimizer_of(model)
    if args.clean:
        for inputs, labels in one_ahead(host_batches(args.seconds, pinned=True)):
            train_step(model, optimizer, inputs, labels)
    else:
        for inputs, labels in host_batches(args.seconds, pinned=False):
            train_step(model, optimizer, inputs.to(DEVICE), labels.to(DEVICE))


if __name__ == "__main__":
    main()
