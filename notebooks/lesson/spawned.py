"""Start ranks with mp.spawn, as stage 3 does, and let them run cells of a notebook."""

import os
from importlib import import_module
from unittest.mock import patch

import torch.multiprocessing as mp

from .ranks import Run, temporary_folder

SECONDS = 120  # that a rank may take for a cell


class Ranks:
    """Processes that mp.spawn has started. They end with the process that has started them."""

    def __init__(self, world_size: int):
        pipes = [mp.get_context("spawn").Pipe() for _ in range(world_size)]
        self.pipes = [ours for ours, _ in pipes]
        of_ranks = [theirs for _, theirs in pipes]
        meeting_point = f"file://{temporary_folder()}/ranks"
        # The ranks are CPU processes with one thread each, also where there are GPUs.
        variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with patch.dict(os.environ, variables):
            self.context = mp.spawn(
                import_module("notebooks.ranks.03_worker").worker,
                args=(world_size, meeting_point, of_ranks),
                nprocs=world_size,
                join=False,
                daemon=True,
            )
        for pipe in of_ranks:
            pipe.close()

    def run(self, cell: str) -> Run:
        """Run a cell on every rank -> what each rank has printed and given.

        Raises RuntimeError if the cell fails on a rank, and TimeoutError if it does not end.
        """
        for pipe in self.pipes:
            pipe.send(cell)
        answers = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(SECONDS):
                self.end()
                raise TimeoutError(f"rank {rank} did not end the cell in {SECONDS} seconds")
            answers.append(pipe.recv())
        out, err, values = zip(*answers)
        run = Run(0, list(out), list(err), values=list(values))
        if any(run.err):
            raise RuntimeError("a rank has failed\n" + "\n".join(run.err))
        return run

    def end(self) -> None:
        for process in self.context.processes:
            process.kill()
