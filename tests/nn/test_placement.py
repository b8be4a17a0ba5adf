import subprocess
import sys

import pytest

from specdec.nn.placement import keep_freed_memory

PROGRAM = """
import resource, torch
from specdec.nn.placement import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        torch.zeros(200_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
if {kept}:
    assert keep_freed_memory()
    faults()
print(faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(not keep_freed_memory(), reason="no glibc here")
def test_temporaries_cause_fewer_page_faults_once_freed_memory_is_kept():
    faults = [
        int(
            subprocess.run([sys.executable, "-c", PROGRAM.format(kept=kept)], capture_output=True, text=True, check=True).stdout
        )
        for kept in (False, True)
    ]
    assert faults[1] < 100
    assert faults[1] <= faults[0]
