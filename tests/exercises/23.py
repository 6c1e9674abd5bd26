GIVEN = "began after the whole backward pass"
IN_GRAD = """        parameter.grad /= dist.get_world_size()
        dist.all_reduce(parameter.grad)
"""
HOOK = "parameter.register_post_accumulate_grad_hook(self.ready)"
STEP = "        self.optimizer.step()\n"
LATER = """        for parameter in self.parameters:
            self.ready(parameter)
"""
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
    "below torch.distributed, and after the backward pass": (
        [
            (HOOK, "pass"),
            (STEP, LATER + STEP),
            (
                "dist.all_reduce(parameter.grad)",
                "dist.group.WORLD.allreduce(parameter.grad).wait()",
            ),
        ],
        "began after the whole backward pass",
    ),
    "the sum": ([(" /= dist.get_world_size()", " /= 1")], "the weights after step 1"),
    "nothing is broadcast": (
        [("            dist.broadcast(parameter.data, src=0)\n", "            pass\n")],
        "the weights before the first step",
    ),
}
