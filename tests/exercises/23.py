GIVEN = "began after the whole backward pass"
HOOK = "parameter.register_post_accumulate_grad_hook(self.ready)"
BEFORE = """    def ready(self, gradient):
        averaged = gradient / dist.get_world_size()
        dist.all_reduce(averaged)
        return averaged

    def not_called(self, parameter):
"""
READY = "    def ready(self, parameter):\n"
RIGHT = {
    "on the gradient, before it is in .grad": [
        (HOOK, "parameter.register_hook(self.ready)"),
        (READY, BEFORE),
    ]
}
WRONG = {
    "the sum": ([(" /= dist.get_world_size()", " /= 1")], "the weights after step 1"),
    "nothing is broadcast": (
        [("            dist.broadcast(parameter.data, src=0)\n", "            pass\n")],
        "the weights before the first step",
    ),
}
