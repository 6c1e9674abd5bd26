"""Runs a data-parallel script unchanged, watches its ranks, and says what they did: docs/doctor.md.

Read record.py (what a rank writes down), watch.py (where PyTorch can be watched), judge.py and
judge_data.py (one function per finding), launch.py (the command), report.py (the words).
"""

VERSION = "0.1"
TRIED = "2.14"  # PyTorch's versions with which the doctor's tests have run
