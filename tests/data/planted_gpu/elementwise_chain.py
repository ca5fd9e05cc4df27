"""An activation of many elementwise operations. `--clean`: torch's own, one kernel."""

from gpu_training import arguments, batches, network, optimizer_of, train_step
from torch.nn import functional as F


def by_hand(x):
    for _ in range(3):
        inner = 0.7978845608 * (x + 0.044715 * x * x * x)
        x = 0.5 * x * (1.0 + inner.tanh()) + 0.1 * x.sigmoid()
    return x


def main():
    args = arguments()
    model = network(activation=F.relu if args.clean else by_hand)
    optimizer = optimizer_of(model)
    for inputs, labels in batches(args.seconds):
        train_step(model, optimizer, inputs, labels)


if __name__ == "__main__":
    main()
