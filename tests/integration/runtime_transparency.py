"""Prints whatever a script could notice of hooks in torch; the same under python and gpurun."""

import atexit
import copy
import inspect
import io
import os
import pickle
import sys
import traceback
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

warnings.simplefilter("always")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.fail = None

    def forward(self, x):
        if self.fail is not None:
            raise self.fail
        warnings.warn("from forward", stacklevel=1)
        return self.layer(x)


class Failing(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise ValueError(f"bad sample {index}")


class Stop(Exception):
    pass


def failing_collate(samples):
    raise RuntimeError("bad batch")


class FailingSampler:
    def __iter__(self):
        yield [0, 1]
        raise KeyError("sampler")


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        if closure is not None:
            raise OverflowError("in step")
        return super().step()


def show(name, function):
    try:
        print(name, function())
    except BaseException:
        print(name)
        print(traceback.format_exc())


def backward_fails(model):
    x = torch.ones(1, 4, requires_grad=True)
    y = model(x)
    y.register_hook(lambda grad: 1 / 0)
    y.sum().backward()


def fails(model, error):
    model.fail = error
    try:
        model(torch.ones(1, 4))
    finally:
        model.fail = None


def control_flow(model):
    """Exceptions and StopIteration as the script's own business."""
    seen = []

    def steps():
        for batch in DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2):
            yield model(batch[0]).sum()

    iterator = steps()
    while True:
        try:
            seen.append(round(next(iterator).item(), 4))
        except StopIteration:
            break
    for error in (Stop("early"), StopIteration("inside"), GeneratorExit(), SystemExit(3)):
        try:
            fails(model, error)
        except BaseException as caught:
            seen.append((type(caught).__name__, caught is error, caught.__context__))
    return seen, sys.exc_info()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = Optimizer(model.parameters(), lr=0.1)
    plain_call = nn.Module.__call__
    for (x,) in DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    print("weights", [p.tolist() for p in model.parameters()])
    print("search is over", nn.Module.__call__ is nn.Module._wrapped_call_impl, plain_call.__name__)
    print("keys", list(model.state_dict()), sorted(vars(model)), sorted(vars(optimizer)))
    print("type", type(model) is Net, isinstance(model, nn.Module), repr(model), repr(optimizer))
    print("signature", inspect.signature(DataLoader), inspect.signature(torch.optim.SGD))
    print("source", inspect.getsource(Net.forward), inspect.getsource(DataLoader.__init__)[:80])
    print("names", torch.autograd.backward.__qualname__, DataLoader.__iter__.__module__)

    average = copy.deepcopy(model)
    with torch.no_grad():
        for p in average.parameters():
            p.zero_()
    print("copy runs its own weights", average(torch.ones(1, 4)).tolist())
    file = io.BytesIO()
    torch.save(model, file)
    print("saved bytes", len(file.getvalue()))
    file.seek(0)
    again = torch.load(file, weights_only=False)
    print("loaded", torch.equal(again(torch.ones(1, 4)), model(torch.ones(1, 4))))
    # not their lengths: a pickle names storages by their address
    print("pickle", [b"gpurun" in pickle.dumps(x) for x in (model, optimizer, average)])
    print("functions", pickle.loads(pickle.dumps(torch.autograd.backward)).__name__)
    loader = DataLoader(TensorDataset(torch.randn(4, 4)))
    print("loader", sorted(vars(loader)), pickle.loads(pickle.dumps(loader)).batch_size)

    show("forward", lambda: fails(model, ValueError("in forward")))
    show("interrupt", lambda: fails(model, KeyboardInterrupt()))
    show("data set", lambda: list(DataLoader(Failing())))
    show("worker", lambda: list(DataLoader(Failing(), num_workers=1)))
    show("collate", lambda: list(DataLoader(range(4), collate_fn=failing_collate)))
    show("sampler", lambda: list(DataLoader(range(4), batch_sampler=FailingSampler())))
    show("loader arguments", lambda: DataLoader(range(4), batch_size=2, batch_sampler=[[0]]))
    show("unknown argument", lambda: DataLoader(range(4), batchsize=2))
    show("optimizer arguments", lambda: torch.optim.SGD(model.parameters(), lr=-1))
    show("no parameters", lambda: torch.optim.Adam([]))
    show("optimizer", lambda: optimizer.step(lambda: 0))
    show("backward", lambda: backward_fails(model))
    show("second backward", lambda: torch.ones(1).backward())
    show("grad", lambda: torch.autograd.grad(torch.ones(1), torch.ones(1)))
    show("import", lambda: __import__("broken_module"))
    print("control flow", control_flow(model))
    optimizer.step()
    print("meta path", [type(f).__name__ for f in sys.meta_path if "gpurun" in type(f).__module__])
    print("environment", sys.argv[1:], os.path.basename(sys.argv[0]), __name__)
    atexit.register(print, "goodbye")


if __name__ == "__main__":
    main()
    raise Stop("at the end")
