GIVEN = "rank 0 waits in line"
WRONG = {
    "another learning rate": ([("lr=0.05", "lr=0.04")], "what step 1 adds to the weights"),
    "validated in train mode": ([("    model.eval()\n", "")], "what train returns on rank 0"),
}
