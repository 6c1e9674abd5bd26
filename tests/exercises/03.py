GIVEN = "the ranks tested 6 and 5 images and returned 54.55 % and 45.45 %"
REDUCE = (
    "    dist.all_reduce(correct)  # the counts are added, then divided once: by the size they "
)
REDUCE += "belong to\n"
RETURN = "    return 100 * correct.item() / len(dataset)\n"
OWN = "100 * correct / len(shard)"
RIGHT = {
    "objects are gathered": [
        (
            REDUCE + RETURN,
            "    counts = [None] * dist.get_world_size()\n"
            "    dist.all_gather_object(counts, (correct.item(), len(shard)))\n"
            "    return 100 * sum(c for c, _ in counts) / sum(n for _, n in counts)\n",
        )
    ],
    "rank 0 adds up and passes it on": [
        (REDUCE, "    dist.reduce(correct, dst=0)\n    dist.broadcast(correct, src=0)\n")
    ],
}
WRONG = {
    "times the number of ranks": (
        [(REDUCE + RETURN, RETURN.replace("/ len", "* dist.get_world_size() / len"))],
        "returned 109.09 % and 90.91 %",
    ),
    "divided by its own number": (
        [(REDUCE + RETURN, f"    return ({OWN}).item()\n")],
        "tested 6 and 5 images and returned 83.33 % and 100.00 %",
    ),
    "the mean of the ranks' accuracies": (
        [
            (
                REDUCE + RETURN,
                f"    mean = {OWN} / dist.get_world_size()\n"
                "    dist.all_reduce(mean)\n    return mean.item()\n",
            )
        ],
        "right on 10 of 11 images, 90.91 %; the ranks tested 6 and 5 images and returned 91.67 %",
    ),
    "every rank tests everything": (
        [
            (
                "Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))",
                "dataset",
            ),
            (REDUCE, ""),
        ],
        "the figure is right, but rank 0 tested 11 of 11 images; with 2 ranks 6 are enough",
    ),
    "only rank 0 knows": (
        [("dist.all_reduce(correct)", "dist.reduce(correct, dst=0)")],
        "returned 100.00 % and 45.45 %",
    ),
}
