"""The verb `check`: the judges of a run, their findings and the report."""
