"""What the verbs share, without torch: the events, the run that they make up, and the launcher."""
