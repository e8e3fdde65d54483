"""The smallest and the largest sandbox that the API takes: each boots, works and has what was asked for."""

import pytest

SIZES = [(1, 128), (8, 1024), (1, 16384)]


@pytest.mark.parametrize("vcpus, memory_mib", SIZES, ids=lambda value: str(value))
def test_a_sandbox_at_the_bounds(api, sandboxes, vcpus, memory_mib):
    sandbox = sandboxes(vcpus=vcpus, memory_mib=memory_mib)
    assert (sandbox["vcpus"], sandbox["memory_mib"]) == (vcpus, memory_mib)
    text = api.check_output(sandbox["id"], "nproc; awk '/^MemTotal/ {print $2}' /proc/meminfo; python3 -c 'print(6*7)'",
                            timeout_seconds=120)
    processors, total_kib, answer = text.split()
    assert (int(processors), answer) == (vcpus, "42")
    # The kernel keeps a part for itself, at most a third of the smallest.
    assert memory_mib * 1024 * 2 // 3 <= int(total_kib) <= memory_mib * 1024
