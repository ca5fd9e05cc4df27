"""One small training by way of each framework that distributes by itself, as people write it.

Called with a framework's name; prints it, the number of ranks as the framework sees them, the steps
that it took and the sum of the absolute weights.
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH, BATCH, EPOCHS = 256, 16, 2


class Rows(Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(LENGTH, 8, generator=draw)
        self.y = self.x.sum(1, keepdim=True)

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.y[index]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x, labels=None):
        out = self.layers(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def tell(name, ranks, steps, net):
    weights = [getattr(p, "full_tensor", lambda p=p: p)() for p in net.parameters()]
    total = sum(w.detach().double().abs().sum().item() for w in weights)
    sys.stdout.write(f"{name} {ranks} {steps} {total:.6f}\n")


def with_accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    loader = DataLoader(Rows(), BATCH, shuffle=True)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    steps = 0
    for _ in range(EPOCHS):
        for batch in loader:
            accelerator.backward(net(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    tell("accelerate", accelerator.num_processes, steps, net)


def with_lightning():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, index):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    lightning.seed_everything(0)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, devices="auto", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(Rows(), BATCH, shuffle=True))
    tell("lightning", trainer.world_size, trainer.global_step, module)


def with_fabric(devices="auto"):
    from lightning.fabric import Fabric

    fabric = Fabric(devices=devices)
    fabric.launch()
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    net, optimizer = fabric.setup(net, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(Rows(), BATCH, shuffle=True))
    steps = 0
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            fabric.backward(net(**batch)["loss"])
            optimizer.step()
            steps += 1
    tell("fabric", fabric.world_size, steps, net)


def with_fabric_ranks():
    with_fabric(int(os.environ["LOCAL_WORLD_SIZE"]))


def with_transformers():
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(0)
    net = Net()
    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, report_to=[],
        save_strategy="no", disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    trainer = Trainer(model=net, args=arguments, train_dataset=Rows())
    trainer.train()
    tell("transformers", arguments.world_size, trainer.state.global_step, net)


def with_fsdp():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(0)
    net = Net().to(device)
    for layer in (net.layers[0], net.layers[2], net):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    draw, steps = torch.Generator().manual_seed(dist.get_rank()), 20
    for _ in range(steps):
        x = torch.randn(BATCH, 8, generator=draw).to(device)
        net(x, x.sum(1, keepdim=True))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    tell("fsdp", dist.get_world_size(), steps, net)
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[f"with_{sys.argv[1]}"]()
