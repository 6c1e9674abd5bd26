GIVEN = "waited 3.8 ms for calls that take 3.8 ms"
RIGHT = {
    "a future for each call": [
        (
            "            work.wait()\n",
            "            torch.futures.wait_all([work.get_future()])\n",
        )
    ]
}
STARTED = "dist.all_reduce(flat, async_op=True), flat, self.bucket))\n"
AT_ONCE = STARTED + "        work = self.started[-1][0]\n"
WRONG = {
    "its future is waited for at once": (
        [(STARTED, AT_ONCE + "        work.get_future().then(lambda f: f.value()).wait()\n")],
        "waited 3.8 ms",
    ),
    "looked at until it is complete": (
        [(STARTED, AT_ONCE + "        while not work.is_completed():\n            pass\n")],
        "waited 3.8 ms",
    ),
    "only the last one is waited for": (
        [("            work.wait()\n", "            self.started[-1][0].wait()\n")],
        "never waits for 2 of its calls",
    ),
    "never waited for": (
        [
            ("            work.wait()\n", ""),
            (
                "        for work, flat, bucket in self.started:\n",
                "        for _, flat, bucket in ():\n",
            ),
        ],
        "never waits for 3 of its calls",
    ),
}
