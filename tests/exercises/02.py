GIVEN = "11 images: different from our solution: the accuracy\n  rank 0: 109.1\n"
SHARD = "range(dist.get_rank(), len(dataset), dist.get_world_size())"
REDUCE = "    dist.all_reduce(correct)\n"
RESULT = "100 * correct.item() / len(dataset)"
MEAN = """    mean = 100 * correct / max(1, len(shard)) / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()
"""
BLOCK = "torch.arange(len(dataset)).tensor_split(dist.get_world_size())[dist.get_rank()]"
RIGHT = {"contiguous shards": [(SHARD, BLOCK)]}
WRONG = {
    "the mean of the ranks' accuracies": ([(f"{REDUCE}    return {RESULT}\n", MEAN)], "accuracy"),
    "every rank tests everything": (
        [(SHARD, "range(len(dataset))"), (RESULT, f"{RESULT} / dist.get_world_size()")],
        "images that a rank tests: 11, 11; 6 with our solution",
    ),
}
