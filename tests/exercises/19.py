GIVEN = "24 images, batch_size=2, epoch 1, 2 steps done"
RETURN = "    return DataLoader(Subset(dataset, left), batch_size=batch_size)\n"
LOADED = """    from itertools import islice

    return islice(DataLoader(dataset, batch_size, sampler=sampler), done, None)
"""
WRONG = {
    "the first batches are loaded and thrown away": (
        [(RETURN, LOADED)],
        "images loaded: 12, 12; 8 with our solution",
    ),
    "the order of epoch 0": ([("    sampler.set_epoch(epoch)\n", "")], "epoch 1, 2 steps done"),
}
