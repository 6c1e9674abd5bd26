GIVEN = (
    "24 images, batch_size=6: in step 0 the ranks together took 12 images: 0, 1, 2, 3, 4, 5, 6, 7, "
    "8, 9, 10, 11; one process takes 6: 0, 1, 2, 3, 4, 5"
)
LOADER = (
    "    loader = DataLoader(dataset, batch_size=batch_size // dist.get_world_size(), "
    "sampler=sampler)\n"
)
PER_RANK = "    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)\n"
RATE = (
    "    ddp_model = DistributedDataParallel(model)\n"
    "    optimizer = torch.optim.SGD(model.parameters(), lr=lr)"
)
SAMPLER = "    sampler = DistributedSampler(dataset, shuffle=False)\n"
PART = "chunk(dist.get_world_size())[dist.get_rank()]"
RIGHT = {
    "each rank takes a piece of each batch of one process": [
        (LOADER, "    loader = DataLoader(dataset, batch_size=batch_size)\n"),
        ("F.mse_loss(ddp_model(x), y)", f"F.mse_loss(ddp_model(x.{PART}), y.{PART})"),
    ],
    "without DDP": [
        (RATE, RATE.replace("DistributedDataParallel(model)", "model\n    start(model)")),
        (
            "        optimizer.step()\n\n\ndef train_on",
            "        for parameter in model.parameters():\n"
            "            parameter.grad /= dist.get_world_size()\n"
            "            dist.all_reduce(parameter.grad)\n"
            "        optimizer.step()\n\n\n"
            "def start(model):\n"
            "    for parameter in model.parameters():\n"
            "        dist.broadcast(parameter.data, src=0)\n\n\n"
            "def train_on",
        ),
    ],
}
WRONG = {
    "the rate times the number of ranks": (
        [(LOADER, PER_RANK), (RATE, RATE.replace("lr=lr", "lr=lr * dist.get_world_size()"))],
        "in step 0 the ranks together took 12 images",
    ),
    "the batch divided and the rate multiplied": (
        [(RATE, RATE.replace("lr=lr", "lr=lr * dist.get_world_size()"))],
        "but the weights of rank 0 differ from its weights by up to",
    ),
    "every rank takes all images": (
        [(SAMPLER, ""), (LOADER, "    loader = DataLoader(dataset, batch_size=batch_size)\n")],
        "in step 0 the ranks together took 12 images: 0, 0, 1, 1, 2, 2,",
    ),
    "blocks": (
        [
            (
                SAMPLER,
                "    size = len(dataset) // dist.get_world_size()\n"
                "    sampler = range(dist.get_rank() * size, (dist.get_rank() + 1) * size)\n",
            )
        ],
        "in step 0 the ranks together took 6 images: 0, 1, 2, 12, 13, 14; one process takes 6: 0",
    ),
    "shuffled": (
        [("shuffle=False", "shuffle=True")],
        "in step 0 the ranks together took 6 images",
    ),
}
