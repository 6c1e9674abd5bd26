"""compare.py on records of which any part was changed: a sound table, or one line."""

import contextlib
import copy
import io
import json
import math
import re
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_compare import DDP, record, write

import compare
from tools import records


def places(value, path=()):
    """The way to each part of a record."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield (*path, key)
        if isinstance(value[key], (dict, list)):
            yield from places(value[key], (*path, key))


def changed(whole, place, value):
    """Put the value there, or take out what is there, if the value is KeyError."""
    with contextlib.suppress(LookupError, TypeError, AttributeError):
        for key in place[:-1]:
            whole = whole[key]
        if value is KeyError:
            del whole[place[-1]]
        else:
            whole[place[-1]] = value


ODD = [None, True, -1, 0, 1e-320, 1e308, 10**400, "", "$x^{$", "a\nb", "\ud800"]
VALUES = st.recursive(
    st.sampled_from(ODD) | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
CHANGES = st.tuples(st.sampled_from([*places(DDP)]), VALUES | st.just(KeyError))


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, database=None)
@given(st.lists(CHANGES, min_size=1, max_size=3))
@example([(("history", 1, "phases", 0, "forward"), 1e-320)])
def test_a_table_of_any_record_is_sound_or_there_is_one_line(tmp_path_factory, changes):
    folder, odd = tmp_path_factory.getbasetemp() / "fuzz", copy.deepcopy(DDP)
    for place, value in changes:
        changed(odd, place, value)
    write(folder, record())
    (folder / "odd.json").write_text(json.dumps(odd))
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["compare.py", "--no-run", "--record", str(folder)])
            try:
                code = compare.main()
            except SystemExit as stopped:
                code = stopped.code
    if code == 2:
        assert err.getvalue().count("\n") == 1 and "odd.json is not a record" in err.getvalue()
        return
    assert code == 0 and err.getvalue() == "" and out.getvalue().count("\n---") == 2
    assert not re.search(r" (nan|-?inf|-\d)", re.sub(r"^.*?  ", "", out.getvalue(), flags=re.M))
    rows = records.read_folder(folder)
    records.pair_table(*rows.values())
    for row in rows.values():
        assert 0 < records.speed(row[0]) < math.inf and 0 <= records.accuracy(row[0]) <= 1
        assert all(0 <= ms < math.inf for found in records.phases_of(row).values() for ms in found)
