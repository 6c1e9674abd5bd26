GIVEN = "rank 0 called the model 2 times, not 4"
LOADER = (
    "    loader = DataLoader(dataset, batch_size=batch_size // dist.get_world_size(), "
    "sampler=sampler)\n"
)
SAMPLER = "    sampler = DistributedSampler(dataset, shuffle=False)\n"
RATE = "optimizer = torch.optim.SGD(model.parameters(), lr=lr)\n    for x, y in loader"
LOSS = "        loss = F.mse_loss(ddp_model(x), y)\n"
MINE = "        x, y = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in (x, y))\n"
RIGHT = {
    "each rank takes a piece of each batch of one process": [
        (LOADER, "    loader = DataLoader(dataset, batch_size=batch_size)\n"),
        (LOSS, MINE + LOSS),
    ]
}
WRONG = {
    "the batch divided and the rate multiplied": (
        [(RATE, RATE.replace("lr=lr", "lr=lr * dist.get_world_size()"))],
        "the weights after step 1",
    ),
    "every rank takes all images": (
        [(SAMPLER, ""), (LOADER, "    loader = DataLoader(dataset, batch_size=batch_size)\n")],
        "was given 24 rows",
    ),
}
