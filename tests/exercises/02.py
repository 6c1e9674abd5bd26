GIVEN = "returned 109.09 %, 109.09 %"
SHARD = "range(dist.get_rank(), len(dataset), dist.get_world_size())"
REDUCE = "    dist.all_reduce(correct)\n"
RESULT = "100 * correct.item() / len(dataset)"
OWN = "100 * correct / max(1, len(shard))"
RIGHT = {
    "objects are gathered": [
        (
            REDUCE + f"    return {RESULT}\n",
            "    counts = [None] * dist.get_world_size()\n"
            "    dist.all_gather_object(counts, (correct.item(), len(shard)))\n"
            "    return 100 * sum(c for c, _ in counts) / sum(n for _, n in counts)\n",
        )
    ]
}
WRONG = {
    "the mean of the ranks' accuracies": (
        [
            (
                REDUCE + f"    return {RESULT}",
                f"    mean = {OWN} / dist.get_world_size()\n"
                "    dist.all_reduce(mean)\n    return mean.item()",
            )
        ],
        "returned",
    ),
    "every rank tests everything": (
        [(SHARD, "range(len(dataset))"), (RESULT, f"{RESULT} / dist.get_world_size()")],
        "6 are enough",
    ),
    "only rank 0 knows": (
        [("dist.all_reduce(correct)", "dist.reduce(correct, dst=0)")],
        "returned",
    ),
}
