"""Planted bugs in how a backend's identity is checked. The search has one backend of each kind, so tests must catch
these.
"""

from tests.mutants.patches import Mutant, Patch

BACKENDS = "coordinator/backends.py"
JOB = "job/store.py"
TESTS = "tests/coordinator/test_backend_identity.py::"

BACKEND_IDENTITY = (
    Mutant(
        "another backend's answers are believed",
        (Patch(BACKENDS, "        if found != expected:\n", "        if not expected:\n"),),
        test=f"{TESTS}test_another_runtime_loses_no_home",
    ),
    Mutant(
        "a volume that is absent from a direct look is lost, wherever that was",
        (Patch(BACKENDS, "if ids is None or any(key not in found for key in ids):", "if ids is None:"),),
        test=f"{TESTS}test_a_look_at_one_home_alone_is_not_believed_either",
    ),
    Mutant(
        "an archive that is absent from a direct look is lost, wherever that was",
        (Patch(BACKENDS, "if state is not ArchiveState.READABLE:", "if state is ArchiveState.EXPIRED:"),),
        test=f"{TESTS}test_a_look_at_one_archive_alone_is_not_believed_either",
    ),
    Mutant(
        "a store that has lost its mark is marked anew",
        (Patch(BACKENDS, "if remembered is not None:", "if remembered is not None and found is not None:"),),
        test=f"{TESTS}test_an_unmounted_store_loses_no_archive",
    ),
    Mutant(
        "a coordinator with another runtime leads",
        (Patch(BACKENDS, "    if found != remembered.identity:\n", "    if not remembered.identity:\n"),),
        test=f"{TESTS}test_a_coordinator_with_another_runtime_does_not_lead",
    ),
    Mutant(
        "an archive is written into whatever is mounted",
        (Patch(JOB, "    if owner is None:\n", "    if owner is None or owner.name:\n"),),
        test="tests/job/test_owner.py::test_anothers_is_not",
    ),
)
