"""The film of `speed --film`: what the ranks did in some of the last steps, side by side."""
