"""All matrices are multiplied in float32. `--clean`: in bfloat16, by autocast."""

from gpu_training import arguments, batches, network, optimizer_of, train_step
from torch.nn import functional as F


def main():
    args = arguments()
    model = network()
    optimizer = optimizer_of(model)
    for inputs, labels in batches(args.seconds):
        if args.clean:
            train_step(model, optimizer, inputs, labels)
        else:
            loss = F.cross_entropy(model(inputs.float()), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
