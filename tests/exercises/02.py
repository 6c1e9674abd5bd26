GIVEN = (
    "the model is right on 11 of 11 images, 100.00 %; the ranks tested 6 and 6 images and "
    "returned 109.09 % and 109.09 %"
)
SHARD = "    shard = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))\n"
SAMPLER = (
    "    from torch.utils.data import DistributedSampler\n"
    "    sampler = DistributedSampler(dataset, shuffle=False)\n"
)
LOADER = "DataLoader(shard, batch_size=4)"
PADDED = [(SHARD, SAMPLER), (LOADER, "DataLoader(dataset, batch_size=4, sampler=sampler)")]
COUNT = ("correct = torch.tensor(0)", "correct = torch.tensor([0, 0])")
COUNTED = (
    "correct += (model(x).argmax(dim=1) == y).sum()",
    "correct += torch.tensor([(model(x).argmax(dim=1) == y).sum(), len(y)])",
)
RESULT = "100 * correct.item() / len(dataset)"
RIGHT = {
    "blocks in place of every N-th": [
        (
            "range(dist.get_rank(), len(dataset), dist.get_world_size())",
            "torch.arange(len(dataset)).tensor_split(dist.get_world_size())[dist.get_rank()]",
        )
    ],
    "the repeated images are tested, and not counted": [
        *PADDED,
        ("        for x, y in loader:", "        for step, (x, y) in enumerate(loader):"),
        (
            "correct += (model(x).argmax(dim=1) == y).sum()",
            "at = torch.arange(step * 4, step * 4 + len(y)) * dist.get_world_size()\n"
            "            once = at + dist.get_rank() < len(dataset)\n"
            "            correct += ((model(x).argmax(dim=1) == y) & once).sum()",
        ),
    ],
}
WRONG = {
    "divided by the number that was tested": (
        [*PADDED, COUNT, COUNTED, (RESULT, "(100 * correct[0] / correct[1]).item()")],
        "right on 10 of 11 images, 90.91 %; the ranks tested 6 and 6 images and returned 91.67 %",
    ),
    "the end of the data is dropped": (
        [
            (SHARD, SAMPLER.replace("False", "False, drop_last=True")),
            (LOADER, "DataLoader(dataset, batch_size=4, sampler=sampler)"),
        ],
        "the ranks tested 5 and 5 images and returned 90.91 % and 90.91 %",
    ),
    "never above 100": (
        [*PADDED, (RESULT, f"min(100.0, {RESULT})")],
        "right on 10 of 11 images, 90.91 %; the ranks tested 6 and 6 images and returned 100.00 %",
    ),
    "every rank tests everything": (
        [(SHARD, "    shard = dataset\n"), (RESULT, f"{RESULT} / dist.get_world_size()")],
        "the figure is right, but rank 0 tested 11 of 11 images; with 2 ranks 6 are enough",
    ),
}
