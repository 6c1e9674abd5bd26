"""What the checker of the exercises is made of: one check per exercise, and what they share."""
