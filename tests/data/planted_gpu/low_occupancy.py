"""A matrix product whose blocks hold nearly all shared memory. `--clean`: torch's own."""

import torch
import triton
import triton.language as tl
from gpu_training import WIDTH, arguments, batches, network, optimizer_of, train_step


@triton.jit
def product(a, b, c, size, STAGES: tl.constexpr):
    rows = tl.program_id(0) * 64 + tl.arange(0, 64)
    columns = tl.program_id(1) * 64 + tl.arange(0, 64)
    inner = tl.arange(0, 64)
    total = tl.zeros((64, 64), dtype=tl.float32)
    for start in tl.range(0, size, 64, num_stages=STAGES):
        left = tl.load(a + rows[:, None] * size + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * size + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * size + columns[None, :], total.to(tl.bfloat16))


def by_hand(weight):
    result = torch.empty_like(weight)
    tiles = WIDTH // 64
    product[(tiles, tiles)](weight, weight, result, WIDTH, STAGES=12)
    return result


def main():
    args = arguments()
    model = network()
    optimizer = optimizer_of(model)
    weight = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
    for inputs, labels in batches(args.seconds, 4096):
        for _ in range(4):
            extra = weight @ weight if args.clean else by_hand(weight)
        train_step(model, optimizer, inputs + extra, labels)


if __name__ == "__main__":
    main()
