"""Planted bugs in what counts as a failure: tries, outages, and answers that are believed too soon. The search runs the
coordinator's half of it; the storage job and the adapters are caught by the tests they name."""

from tests.mutants.patches import Mutant, Patch

FAILURES = "domain/failures.py"
OPERATIONS = "domain/operations.py"
JUDGE = "domain/judge.py"
RECONCILER = "coordinator/reconciler.py"
VERIFY = "job/archive.py"
JOB_TESTS = "tests/job/test_outages.py::"
ANSWER_TESTS = "tests/contracts/test_wrong_answers.py::"

FIRST_READING = "    first = _reading(store.reopened(), advance)\n"

TRIES = (
    Mutant(
        "tries of one operation are charged to the next",
        (
            Patch(OPERATIONS, "    if not _goes_on_trying(ws, operation):\n", "    if False:\n"),
            Patch(OPERATIONS, "ws.error_count if ws.operation is Operation.STARTING else 0", "ws.error_count"),
        ),
    ),
    Mutant(
        "an operation given up between tries hands them on to another",
        (Patch(OPERATIONS, "    if not _goes_on_trying(ws, operation):\n", "    if False:\n"),),
        test="tests/domain/test_operations.py::test_an_operation_given_up_between_tries_hands_nothing_on_to_another",
    ),
    Mutant(
        "a start that succeeded forgets its tries",
        (Patch(OPERATIONS, "ws.error_count if ws.operation is Operation.STARTING else 0", "0"),),
        test="tests/coordinator/test_outages.py::test_a_start_that_fails_and_then_dies_at_once_has_three_tries_in_all",
    ),
    Mutant(
        "a relapse is charged with the tries of a stop that was given up",
        (Patch(FAILURES, "count = 0 if of_another else ws.error_count", "count = ws.error_count"),),
        test="tests/domain/test_operations.py::"
        "test_a_relapse_is_not_charged_with_the_tries_of_a_stop_that_was_given_up",
    ),
)

DAMAGE = (
    Mutant(
        "an archive that is there already is believed without reading it",
        (Patch(VERIFY, "if meta is None or _is_proven(store, meta.sha256, meta.bytes, progress):", "if True:"),),
        test="tests/job/test_archive.py::test_a_proven_archive_that_has_rotted_is_made_again_while_the_home_lives",
    ),
    Mutant(
        "an archive found damaged is called ready",
        (Patch(FAILURES, "        ws = _with_corruption_mark(ws, now)\n", "        pass\n"),),
    ),
    Mutant(
        "recover takes the damaged archive again",
        (
            Patch(RECONCILER, " and point.key not in ws.home.corrupted\n", "\n"),
            Patch(RECONCILER, "besides=_failed_restore_key(ws))", "besides=None)"),
        ),
        test="tests/coordinator/test_outages.py::test_recovering_from_a_damaged_archive_takes_another",
    ),
)

SILENCE = (
    Mutant(
        "an outage uses up a try",
        (Patch(FAILURES, "    if REASONS[failure.reason].is_outage:\n", "    if False:\n"),),
    ),
    Mutant(
        "a storage job that cannot reach the store has failed",
        (
            Patch(
                "job/store.py",
                '        raise JobFailed(ExitCode.UNREACHABLE, f"{doing}: {first_line(error)}", transient=True)',
                '        raise JobFailed(ExitCode.ACTION_FAILED, f"{doing}: {first_line(error)}", transient=True)',
            ),
        ),
        test=f"{JOB_TESTS}test_a_store_that_breaks_off_is_not_reached",
    ),
    Mutant(
        "an upload that the store forgets is a failure of the home",
        (
            Patch(
                "job/archive.py",
                'raise unreachable("the object store does not give back what was sent")',
                'raise JobFailed(ExitCode.ACTION_FAILED, "the object store does not give back what was sent")',
            ),
        ),
        test=f"{JOB_TESTS}test_an_upload_that_the_store_forgets_is_an_outage",
    ),
    Mutant(
        "an engine that lost its parts has failed",
        (Patch("adapters/docker/engine.py", "error.status >= _ITS_OWN_FAULT and", "False and"),),
        test="tests/contracts/test_docker_outages.py::test_an_engine_without_its_parts_has_not_answered",
    ),
    Mutant(
        "an outage that no leader saw counts against the deadline",
        (Patch(RECONCILER, "        times.append(error.occurred_at)\n", "        pass\n"),),
        test="tests/coordinator/test_outages.py::test_what_no_leader_saw_of_an_outage_counts_against_no_deadline",
    ),
    Mutant(
        "the deadline of a storage job runs on while the store is out",
        (Patch(RECONCILER, "            row = operations.restarted(row, now)\n", "            pass\n"),),
        test="tests/coordinator/test_outages.py::test_the_deadline_of_a_storage_job_stands_still_while_the_store_is_out",
    ),
)

ANSWERS = (
    Mutant(
        "a checksum that was read wrong once is damage",
        (Patch(VERIFY, FIRST_READING, "    return corrupted('once is enough')\n" + FIRST_READING),),
        test=f"{JOB_TESTS}test_a_wrong_answer_is_not_a_wrong_object",
    ),
    Mutant(
        "two readings that differ are damage",
        (Patch(VERIFY, " or _reading(store.reopened(), advance) != first:\n", ":\n"),),
        test=f"{JOB_TESTS}test_answers_that_are_wrong_in_another_way_each_time_are_no_damage",
    ),
    Mutant(
        "an archive that is not there once is lost",
        (Patch(VERIFY, "        return _confirmed(store.reopened(), failure)\n", "        raise\n"),),
        test=f"{JOB_TESTS}test_a_wrong_answer_is_not_a_wrong_object",
    ),
    Mutant(
        "the coordinator believes the first bad news",
        (
            Patch(
                "adapters/object_store/archives.py",
                "        if first.state is ArchiveState.READABLE:\n",
                "        if first.state:\n",
            ),
        ),
        test=f"{ANSWER_TESTS}test_a_look_believes_bad_news_only_when_it_is_heard_twice",
    ),
    Mutant(
        "a download calls an archive damaged at the first wrong piece",
        (
            Patch(
                "adapters/object_store/extract.py",
                "        if wrong == (number, mark):\n",
                "        if wrong == (number, mark) or not wrong:\n",
            ),
        ),
        test=f"{ANSWER_TESTS}test_browsing_reads_again_before_it_says_that_an_archive_is_damaged",
    ),
)

OUTAGES = (*TRIES, *DAMAGE, *SILENCE, *ANSWERS)
