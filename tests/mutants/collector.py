"""Bugs planted in the collector and in what proves an archive. Where the simulation does not run the code (real
storage) or never meets the disaster (an empty database), the mutant names the test that must catch it."""

from tests.mutants.patches import Mutant, Patch

RUNNER = "coordinator/gc_runner.py"
RECONCILER = "coordinator/reconciler.py"
OPERATIONS = "domain/operations.py"
RULES = "domain/gc_rules.py"
SAFETY = "domain/gc_safety.py"
COMMANDS = "usecases/workspace_commands.py"
MARKS = "adapters/memory/database.py"
OBJECTS = "adapters/object_store/archives.py"
JOB = "job/archive.py"

REFUSES = "tests/coordinator/test_gc_refusals.py::test_it_refuses_to_be_catastrophic"
OLDER = "tests/coordinator/test_older_database.py"
PURGE = "            if not await self._commands.purge(ws.id, self._retention.undo, self._robot):\n"
JUDGED_AGAIN = "partial(may_sweep, resource, self._retention)"

SWEEPING = (
    Mutant("the collector sweeps without grace", (Patch(RUNNER, "begins + retention.grace", "begins"),)),
    Mutant("the collector ignores restore points", (Patch(RULES, "[: retention.restore_points]", "[:0]"),)),
    Mutant(
        "the collector takes the archive in use",
        (Patch(RULES, "keys = {ws.archive_key} if ws.archive_key else set()", "keys: set[str] = set()"),),
    ),
    Mutant(
        "the collector takes the archive that is being written",
        (Patch(RULES, "    if ws.archive_op_id is not None:\n", "    if False:\n"),),
    ),
    Mutant(
        "the collector takes what a workspace in ERROR has",
        (
            Patch(RULES, "in_error = ws.deleted_at is None and", "in_error = False and"),
            Patch(RULES, "    if ws.phase is Phase.ERROR:\n        return", "    if False:\n        return"),
        ),
    ),
    Mutant(
        "the collector takes the living home",
        (Patch(RULES, "in_use = ws.volume_may_be_only_copy or", "in_use = "),),
    ),
    Mutant(
        "the collector believes what it saw and does not judge again",
        (Patch(RUNNER, JUDGED_AGAIN, "lambda *_: True"),),
    ),
    Mutant("the collector works beside the workers", (Patch(RUNNER, "holding(workspace_id)", "holding(UUID(int=0))"),)),
    Mutant(
        "a mark outlives what interrupts it",
        (Patch(MARKS, "self._state.collector.marks = after", "self._state.collector.marks = before | after"),),
    ),
    Mutant(
        "the last copies go without a purge",
        (
            Patch(RUNNER, PURGE, "            if False:\n"),
            Patch(RULES, "is not None and not purge_first", "is not None"),
        ),
    ),
    Mutant(
        "a purge overrules an undelete",
        (
            Patch(
                RULES,
                " and now - ws.deleted_at >= undo and not ws.undelete_pending",
                " and now - ws.deleted_at >= undo",
            ),
        ),
    ),
    Mutant(
        "a purge within the undo window",
        (Patch(RULES, " and now - ws.deleted_at >= undo and", " and"),),
    ),
    Mutant(
        "an undelete is accepted after the purge",
        (
            Patch(
                COMMANDS,
                "            if row.purged_at is not None:\n                raise",
                "            if False:\n                raise",
            ),
        ),
    ),
    Mutant(
        "the collector marks nothing",
        (Patch(RUNNER, "    if not database_is_doubtful(report.refusals):\n", "    if not report.existing:\n"),),
    ),
)

NAMED = (
    Mutant(
        "a cut-off upload is taken up again after an undelete",
        (
            Patch(
                RECONCILER,
                "undelete_handled_at=ws.undelete_requested_at, archive_op_id=None)",
                "undelete_handled_at=ws.undelete_requested_at)",
            ),
        ),
        test="tests/coordinator/test_gc_runner.py::test_an_upload_that_was_under_way_at_the_delete_is_never_taken_up_again",
    ),
    Mutant(
        "the collector sweeps on an empty database",
        (Patch(SAFETY, "        _empty(facts),\n", ""),),
        test=REFUSES,
    ),
    Mutant(
        "the collector sweeps on a restored database",
        (Patch(SAFETY, "        _behind(facts, limits),\n", ""),),
        test=REFUSES,
    ),
    Mutant(
        "a new home takes the name of one that the database forgot",
        (Patch(OPERATIONS, "max(newer, default=ws.home.incarnation) + 1", "ws.home.incarnation + 1"),),
        test=f"{OLDER}::test_a_home_that_the_database_forgot_is_not_written_over",
    ),
    Mutant(
        "a home that was passed over is a former home",
        (Patch(OPERATIONS, "passed_over=(*ws.home.passed_over, *sorted(newer))", "passed_over=()"),),
        test=f"{OLDER}::test_it_is_not_swept_either_before_or_after_the_next_home_is_made",
    ),
    Mutant(
        "the collector sweeps a home that is newer than its row",
        (Patch(RULES, "    return number > ws.home.incarnation or number", "    return number"),),
        test=f"{OLDER}::test_a_home_newer_than_its_row_stops_the_collector_whatever_the_row_says",
    ),
    Mutant(
        "the collector sweeps an archive whose making was not recorded",
        (Patch(RUNNER, "if op_id not in recorded)", "if not op_id)"),),
        test=f"{OLDER}::test_an_archive_whose_making_was_not_recorded_stops_the_collector",
    ),
    Mutant(
        "the collector sweeps what the database has lost",
        (Patch(SAFETY, "        _older(facts),\n", ""),),
        test=f"{OLDER}::test_what_belongs_to_a_workspace_that_nobody_knows_stops_the_collector",
    ),
    Mutant(
        "the collector sweeps on a new database",
        (Patch(SAFETY, "        _younger(facts, limits),\n", ""),),
        test=REFUSES,
    ),
    Mutant(
        "the collector sweeps in another installation's store",
        (Patch(SAFETY, "        _foreign(facts),\n", ""),),
        test=REFUSES,
    ),
    Mutant(
        "many objects hide the loss of all volumes",
        (
            Patch(
                SAFETY,
                "count.garbage > count.existing * limits.most_share",
                "count.garbage > 500 * limits.most_share",
            ),
        ),
        test=REFUSES,
    ),
    Mutant(
        "a backend that does not answer counts as empty",
        (
            Patch(
                RUNNER,
                "        volumes = await self._runtime.volumes()\n",
                "        try:\n            volumes = await self._runtime.volumes()\n"
                "        except Exception:\n            volumes = {}\n",
            ),
        ),
        test="tests/coordinator/test_gc_runner.py::test_a_backend_that_does_not_answer_sweeps_and_marks_nothing",
    ),
    Mutant(
        "a volume goes before its container",
        (Patch(RUNNER, "enumerate(ResourceKind)", "enumerate(reversed(ResourceKind))"),),
        test="tests/coordinator/test_gc_runner.py::test_the_container_goes_before_the_volume",
    ),
    Mutant(
        "the object goes before its .meta",
        (
            Patch(
                OBJECTS,
                "        self._remove(meta_key(key))\n        self._remove(key)\n",
                "        self._remove(key)\n        self._remove(meta_key(key))\n",
            ),
        ),
        test="tests/contracts/test_archives.py::test_meta_goes_before_its_object",
    ),
    Mutant(
        "an upload is not read back",
        (Patch(JOB, "    _prove(store, sha256, size, progress)\n", ""),),
        test="tests/job/test_archive.py::test_what_was_stored_wrong_is_never_believed",
    ),
    Mutant(
        ".meta is written before the proof",
        (
            Patch(JOB, "    _prove(store, sha256, size, progress)\n    meta =", "    meta ="),
            Patch(
                JOB,
                "    return meta, totals.left_out\n",
                "    _prove(store, sha256, size, progress)\n    return meta, totals.left_out\n",
            ),
        ),
        test="tests/job/test_archive.py::test_meta_is_written_after_the_proof",
    ),
    Mutant(
        "a second upload over a proven archive",
        (Patch(JOB, "            if store.read_meta() is not None:\n", "            if False:\n"),),
        test="tests/job/test_archive.py::test_a_proven_archive_is_never_written_over",
    ),
)
COLLECTOR: tuple[Mutant, ...] = (*SWEEPING, *NAMED)
