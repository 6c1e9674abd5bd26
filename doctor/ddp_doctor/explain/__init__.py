"""The verb `explain`: what the logs of a failed run say."""
