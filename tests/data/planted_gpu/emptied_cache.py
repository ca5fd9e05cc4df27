"""The allocator's memory is given back in each step. `--clean`: it is kept."""

import torch
from gpu_training import arguments, batches, network, optimizer_of, train_step


def main():
    args = arguments()
    model = network()
    optimizer = optimizer_of(model)
    for inputs, labels in batches(args.seconds):
        train_step(model, optimizer, inputs, labels)
        if not args.clean:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
