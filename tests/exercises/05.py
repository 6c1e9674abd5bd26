GIVEN = "24 images, batch_size=6: different from our solution: what step 1 adds"
LOADER = "batch_size=batch_size // dist.get_world_size(), sampler=sampler"
SAMPLER = "    sampler = DistributedSampler(dataset, shuffle=False)\n"
RATE = "lr=lr)\n    for x, y in loader"
WRONG = {
    "the batch divided and the rate multiplied": (
        [(RATE, RATE.replace("lr=lr", "lr=lr * dist.get_world_size()"))],
        "what step 1 adds to the weights",
    ),
    "every rank takes all images": (
        [(SAMPLER, ""), (LOADER, "batch_size=batch_size")],
        "the rows given to the model of each rank: 24, 24; 12 with our solution",
    ),
}
