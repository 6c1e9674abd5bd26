"""The verb `speed`: where the time of a step goes, and what costs most."""
