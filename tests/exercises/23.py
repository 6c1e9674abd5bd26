GIVEN = "began after the whole backward pass"
FIRST = """        if parameter is not self.parameters[-1]:
            return
"""
STEP = "        self.optimizer.step()\n"
OTHERS = """        for parameter in self.parameters[:-1]:
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)
"""
DOC = '        """Called in the backward pass, as soon as .grad is there."""\n'
WRONG = {
    "only the first gradient leaves from its hook": (
        [(DOC, DOC + FIRST), (STEP, OTHERS + STEP)],
        "rank 0: 1 of 12 calls begin before the backward pass has reached the first layer",
    ),
    "nothing is broadcast": (
        [("            dist.broadcast(parameter.data, src=0)\n", "            pass\n")],
        "different from DDP: the weights before the first step",
    ),
}
