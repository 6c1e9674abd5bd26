"""The doctor's preflight on nodes of their own; doctor/tests has the rest."""

import pytest
from conftest import NEEDS_HOSTS, NET, hosts

SCRIPT = "doctor preflight --device cpu --timeout 60"


@NEEDS_HOSTS
@pytest.mark.slow
def test_a_name_that_leads_to_the_wrong_address(reader):
    with hosts.hosts_for_a_while(2, NET) as net:
        file = net.etc_hosts("host1")
        file.write_text(file.read_text().replace("10.5.0.2 host1", "127.0.1.1 host1"))
        line = "exec torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d "
        command = ["sh", "-c", f"{line} --rdzv-endpoint host0:29500 {SCRIPT}"]
        options = {"cwd": reader.folder, "env": reader.env, "stdout": -1, "text": True}
        started = [net.start(name, command, **options) for name in net.names()]
        (first, _), (second, _) = (process.communicate(timeout=150) for process in started)
    assert "host1 is 127.0.1.1, but others reach it at 10.5.0.2" in first
    assert first.endswith("preflight: FAILED\n") and second == ""
    assert [process.returncode for process in started] == [1, 1]
