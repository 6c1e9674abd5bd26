GIVEN = "waited 3.8 ms for calls that take 3.8 ms"
RIGHT = {
    "a future for each call": [
        ("work.wait()", "work.get_future().wait()"),
    ]
}
STARTED = "dist.all_reduce(flat, async_op=True), flat, self.bucket))\n"
WRONG = {
    "waited for at once": (
        [(STARTED, STARTED + "        self.started[-1][0].wait()\n")],
        "waited 3.8 ms",
    ),
    "never waited for": (
        [
            ("            work.wait()\n", ""),
            (
                "        for work, flat, bucket in self.started:\n",
                "        for _, flat, bucket in ():\n",
            ),
        ],
        "the weights after step 1",
    ),
}
