GIVEN = "24 images, batch_size=2, epoch 1, 2 steps done"
LEFT = (
    "    left = list(sampler)[done * batch_size :]"
    "  # numbers of images: nothing is loaded for them\n"
)
RETURN = "    return DataLoader(Subset(dataset, left), batch_size=batch_size)\n"
SAMPLER = "    return DataLoader(dataset, batch_size, sampler=left)\n"
RIGHT = {"the numbers are the sampler": [(RETURN, SAMPLER)]}
LOADED = """    from itertools import islice

    return islice(DataLoader(dataset, batch_size, sampler=sampler), done, None)
"""
WRONG = {
    "the first batches are loaded and thrown away": ([(LEFT + RETURN, LOADED)], "loaded 12 images"),
    "the order of epoch 0": ([("    sampler.set_epoch(epoch)\n", "")], "epoch 1, 2 steps done"),
}
