GIVEN = "waited 3.8 ms for calls that take 3.8 ms"
STARTED = "dist.all_reduce(flat, async_op=True), flat, self.bucket))\n"
AT_ONCE = STARTED + "        work = self.started[-1][0]\n"
WRONG = {
    "its future is waited for at once": (
        [(STARTED, AT_ONCE + "        work.get_future().then(lambda f: f.value()).wait()\n")],
        "waited 3.8 ms",
    ),
    "only the last one is waited for": (
        [("            work.wait()\n", "            self.started[-1][0].wait()\n")],
        "never waits for 2 of its calls",
    ),
}
