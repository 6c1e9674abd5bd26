"""Runs a data-parallel script unchanged, watches its ranks, and says what they did: docs/doctor.md.

Read record.py (what a rank writes down), watch.py (where PyTorch can be watched), judge.py (one
function per finding; judge_data.py and judge_run.py have more), launch.py (the command), report.py
(the words). With --speed these are watch_speed.py, twin.py (the second run), judge_speed.py and
speed.py.
"""

VERSION = "0.1"
TRIED = "2.14"  # PyTorch's versions with which the doctor's tests have run
