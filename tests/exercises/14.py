GIVEN = "what step 1 adds to the weights"
COUNT = "        count = (y != -100).sum()\n"
WRONG = {
    "a rank without tokens leaves the step out": (
        [(COUNT, "        if (y == -100).all():\n            continue\n" + COUNT)],
        "it hangs:\nrank 0 waits in line",
    ),
    "not times the number of ranks": (
        [(" * dist.get_world_size() / count", " / count")],
        "what step 1 adds to the weights",
    ),
}
