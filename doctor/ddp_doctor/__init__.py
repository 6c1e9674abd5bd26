"""Watches the ranks of a data-parallel script, and names its silent mistakes.

README.md of the folder above says in which order to read the files.
"""

__version__ = "0.2"
TRIED = "2.14"  # PyTorch's versions with which the doctor's tests have run
