GIVEN = "began after the whole backward pass"
HOOK = "            parameter.register_post_accumulate_grad_hook(self.ready)\n"
BEFORE = """    def ready(self, gradient):
        averaged = gradient / dist.get_world_size()
        dist.all_reduce(averaged)
        return averaged
"""
READY = """    def ready(self, parameter):
        \"\"\"Called in the backward pass, as soon as .grad is there.\"\"\"
        parameter.grad /= dist.get_world_size()
        dist.all_reduce(parameter.grad)
"""
RIGHT = {
    "on the gradient, before it is in .grad": [
        (HOOK, "            parameter.register_hook(self.ready)\n"),
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
