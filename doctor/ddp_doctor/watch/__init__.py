"""What runs in the reader's processes: the watchers, and what they share."""
