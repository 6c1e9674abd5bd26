"""What compare.py, the benchmarks, the notebooks, the rehearsal and the tests share."""
