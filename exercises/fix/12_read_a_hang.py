"""Which rank hangs? Read the stacks and the flight record

Three ranks of a job wait forever. Below is what py-spy shows of each rank, and what the flight
recorder has kept (docs/debugging.md says how to get both). One rank did what the others did not.
Write three numbers into `answer`. "rank" is that rank. "line" is the line of train.py with the
condition that was true on this rank only. "seq" is the number of the first collective that is not
the same on all ranks. This file is read, not started.

python exercises/check.py 12  # is it right?
"""

STACKS = """
rank 0   all_reduce <- mean_loss (train.py:61) <- main (train.py:33)
rank 1   broadcast <- sync (train.py:72) <- save_best (train.py:47) <- main (train.py:32)
rank 2   all_reduce <- mean_loss (train.py:61) <- main (train.py:33)
"""

SOURCE = """
29    for epoch in range(epochs):
30        train_epoch(ddp_model, loader, optimizer)
31        accuracy = evaluate(model, my_shard)
32        save_best(model, accuracy, best)
33        history.append(mean_loss(losses))

44    def save_best(model, accuracy, best):
45        if accuracy > best["accuracy"]:
46            best["accuracy"] = accuracy
47            sync(model)
48            if dist.get_rank() == 0:
49                torch.save(model.state_dict(), "best.pt")
"""

FLIGHT_RECORD = """
rank 0   seq 119 all_reduce [116136] completed   seq 120 all_reduce [1] started
rank 1   seq 119 all_reduce [116136] completed   seq 120 broadcast [288] started
rank 2   seq 119 all_reduce [116136] completed   seq 120 all_reduce [1] started
"""

answer = {"rank": None, "line": None, "seq": None}
