"""The planted bugs. Each undoes one rule that guards data, users or the single leader, as a hurried author would.

The texts are chosen to be short and whole within a line where they can be, so that a change of layout leaves them be.
"""

from tests.mutants.backend_identity import BACKEND_IDENTITY
from tests.mutants.collector import COLLECTOR
from tests.mutants.outages import OUTAGES
from tests.mutants.patches import Mutant, Patch

EXECUTOR = "coordinator/executor.py"
EXECUTOR_TESTS = "tests/coordinator/test_executor.py::"
RECONCILER = "coordinator/reconciler.py"
OBSERVER = "coordinator/observer.py"
QUEUE = "coordinator/queue.py"
BACKENDS = "coordinator/backends.py"
TTL_RUNNER = "coordinator/ttl_runner.py"
JUDGE = "domain/judge.py"
PLAN = "domain/plan.py"
FAILURES = "domain/failures.py"
OPERATIONS = "domain/operations.py"
TRANSITIONS = "domain/transitions.py"
NAMING = "domain/naming.py"
LEDGER = "domain/ledger.py"
STORES = "ports/stores.py"
COMMANDS = "usecases/workspace_commands.py"
DATABASE = "adapters/memory/database.py"
LEADERSHIP = "adapters/memory/leadership.py"

COMMIT_RESULT = """\
        if result is not None:
            await self._commit_archive(result)
"""
MARKED_EARLY = """\
        if self.row.home.restoring is not None and job is None:
            whole = replace(self.row.home, marker=(key, self._op_id), restoring=None)
            await self._record(replace(self.row, home=whole), "restored")
"""
RESTORE_RESULT = "        result = await self._job_result(job, JobKind.RESTORE, key)\n"
KEY_ALONE = "ws.home.marker is not None and ws.home.marker[0] == ws.archive_key"

ORDER = (
    Mutant(
        "the volume is deleted before archive_key is saved",
        (
            Patch(
                EXECUTOR,
                COMMIT_RESULT,
                COMMIT_RESULT.replace("await", "await self._delete_volume()\n            await", 1),
            ),
        ),
    ),
    Mutant(
        "acting before recording",
        (
            Patch(
                RECONCILER,
                "        row = await self._statuses.record(it.loaded, after, reason=reason)\n",
                "        if isinstance(it.decision, Begin):\n"
                "            await Executor(self._context, after, it.facts, it.now).step()\n"
                "        row = await self._statuses.record(it.loaded, after, reason=reason)\n",
            ),
        ),
    ),
    Mutant(
        "completion from the actuator's return",
        (
            Patch(
                RECONCILER,
                "or executor.row is not row:\n",
                "or executor.row is not row:\n"
                "            done = operations.complete(executor.row)\n"
                "            await self._statuses.record(executor.row, done, reason='observed')\n",
            ),
        ),
    ),
    Mutant(
        "op_id regenerated on retry",
        (
            Patch(
                RECONCILER,
                "        row = await self._statuses.record(before, after, reason=error.reason.value)\n",
                "        after = replace(after, op_id=self._ids.new())\n"
                "        row = await self._statuses.record(before, after, reason=error.reason.value)\n",
            ),
        ),
    ),
    Mutant(
        "an observation overwrites a row that has moved on",
        (Patch(DATABASE, "row is not None and row.version == before.version", "row is not None"),),
    ),
)

LEADER = (
    Mutant("no epoch check", (Patch(LEADERSHIP, "if epoch != self.epoch:", "if epoch > self.epoch:"),)),
    Mutant("epoch read without FOR SHARE", (Patch(LEADERSHIP, "self.open.append(transaction)", "pass"),)),
    Mutant(
        "no look at the own clock before acting",
        (Patch(BACKENDS, "if not self._term.held():", "if False:"),),
    ),
    Mutant(
        "a rival does not wait until the old term is over",
        (Patch(STORES, "DEPOSE_AFTER = timedelta(seconds=4)", "DEPOSE_AFTER = timedelta(seconds=1.5)"),),
    ),
    Mutant("two workers on one id", (Patch(QUEUE, " or workspace_id in self._working:", ":"),)),
    Mutant(
        "a failing pass does not back off",
        (Patch(QUEUE, "= self._clock.monotonic() + seconds", "= self._clock.monotonic()"),),
    ),
)

OBSERVATION = (
    Mutant(
        "unknown treated as absent: volumes",
        (Patch(OBSERVER, "            volumes = None\n", "            volumes = {}\n"),),
    ),
    Mutant(
        "unknown treated as absent: containers",
        (Patch(OBSERVER, "            containers = None\n", "            containers = {}\n"),),
    ),
    Mutant(
        "unknown treated as absent: archives",
        (
            Patch(
                OBSERVER,
                "        except Unreachable:\n            return ArchiveState.UNKNOWN\n",
                "        except Unreachable:\n            return ArchiveState.NOT_FOUND\n",
            ),
        ),
    ),
    Mutant(
        "an operation begins blind",
        (
            Patch(
                PLAN,
                '    if not facts.runtime_known:\n        return Wait("the runtime does not answer")\n',
                "",
            ),
        ),
    ),
    Mutant(
        "a stale snapshot believed",
        (
            Patch(OBSERVER, "fresh and snapshot.begun > since and ", ""),
            Patch(RECONCILER, "return enters_error or creates or", "return"),
        ),
    ),
    Mutant(
        "a missed probe read as stopped",
        (
            Patch(JUDGE, "if seen.answered or ws.home.ready_instance == seen.instance:", "if seen.answered:"),
            Patch(OBSERVER, " or seen.instance == ws.home.ready_instance:", ":"),
        ),
    ),
)

HOME = (
    Mutant(
        "an exited container taken as stopped",
        (Patch(TRANSITIONS, "ready.status is False and ready.reason == NO_CONTAINER.reason", "ready.status is False"),),
    ),
    Mutant(
        "archive_op_id kept across a start",
        (
            Patch(OPERATIONS, "            return replace(row, archive_op_id=None)\n", "            return row\n"),
            Patch(JUDGE, "    if ws.home.live:\n        return None\n", ""),
        ),
    ),
    Mutant(
        "an old archive_key taken as done",
        (
            Patch(
                TRANSITIONS,
                "naming.is_archive_of(ws.archive_key, ws.id, ws.archive_op_id)",
                "ws.archive_key is not None",
            ),
            Patch(
                EXECUTOR,
                "            if not naming.is_archive_of(self.row.archive_key, self.row.id, self.row.archive_op_id):",
                "            if self.row.archive_key is None:",
            ),
        ),
    ),
    Mutant(
        "what a container has written past the safe point is not archived",
        (
            Patch(
                JUDGE,
                "return uuid5(ws.op_id, seen.instance) if ws.home.deleting_volume and ws.op_id else ws.archive_op_id",
                "return ws.archive_op_id",
            ),
        ),
        test=f"{EXECUTOR_TESTS}test_what_a_container_that_came_late_has_written_is_in_the_archive",
    ),
    Mutant(
        "a container that has ended has not written",
        (
            Patch(
                JUDGE,
                "    if seen is None or seen.volume not in",
                "    if seen is None or not seen.running or seen.volume not in",
            ),
        ),
        test=f"{EXECUTOR_TESTS}test_what_a_container_that_came_late_has_written_is_in_the_archive",
    ),
    Mutant("the restore marker set early", (Patch(EXECUTOR, RESTORE_RESULT, MARKED_EARLY + RESTORE_RESULT),)),
    Mutant(
        "the restore marker kept, and only its key compared",
        (
            Patch(OPERATIONS, "live=False, marker=None, volume_instance=None)", "live=False, volume_instance=None)"),
            Patch(
                OPERATIONS,
                "home=replace(ws.home, live=False, restoring=None, marker=None, half_restored=half)",
                "home=replace(ws.home, live=False, restoring=None, half_restored=half)",
            ),
            Patch(
                OPERATIONS,
                "HomeContext(incarnation=number, restoring=restoring,",
                "HomeContext(incarnation=number, marker=ws.home.marker,",
            ),
            Patch(JUDGE, "ws.home.marker is not None and ws.home.marker == (ws.archive_key, ws.op_id)", KEY_ALONE),
            Patch(TRANSITIONS, "ws.home.marker == (ws.archive_key, ws.op_id)", KEY_ALONE),
            Patch(EXECUTOR, "restoring=key, marker=None, volume_instance=None)", "volume_instance=None)"),
        ),
    ),
    Mutant(
        "a half-restored volume started",
        (Patch(JUDGE, "status=False, reason=VOLUME_RESTORING", "status=True, reason=VOLUME_RESTORING"),),
    ),
    Mutant(
        "volume names without incarnation",
        (Patch(NAMING, "home if incarnation <= 1 else", "home if incarnation else"),),
    ),
    Mutant(
        "a volume created late taken for the home",
        (Patch(JUDGE, "status=False, reason=VOLUME_STRANGE", "status=True, reason=VOLUME_STRANGE"),),
    ),
    Mutant(
        "another volume of the same name taken for the home",
        (Patch(JUDGE, "if ws.home.volume_instance not in (None, instance):", "if False:"),),
    ),
    Mutant(
        "the safe point as read-then-delete",
        (
            Patch(
                EXECUTOR,
                "passed = await self._statuses.pass_safe_point(self.row)",
                "leaving = replace(self.row.home, deleting_volume=True, live=False)\n"
                "            passed = await self._statuses.record(self.row, replace(self.row, home=leaving))",
            ),
        ),
    ),
    Mutant(
        "the safe point's refusal ignored",
        (
            Patch(
                EXECUTOR,
                "            if passed is None:\n                await self._yield(job)\n                return\n"
                "            self.row = passed\n",
                "            self.row = passed or self.row\n",
            ),
        ),
    ),
    Mutant(
        "a job of an old operation left running",
        (
            Patch(
                EXECUTOR,
                "        await self._backends.clear_job(self.row.id)\n        return None\n",
                "        return None\n",
            ),
        ),
    ),
    Mutant(
        "delete from ERROR destroys the only copy",
        (Patch(EXECUTOR, "in volumes and not self.row.volume_may_be_only_copy:", "in volumes:"),),
    ),
    Mutant("a hand-removed volume silently replaced", (Patch(JUDGE, "if home.live and gone:", "if False:"),)),
    Mutant(
        "recover drops a living volume",
        (Patch(FAILURES, "only_copy = volume_lives(ws.conditions.volume_ready) and", "only_copy = False and"),),
    ),
    Mutant(
        "a restore point taken over a living home",
        (
            Patch(
                PLAN, "if ws.restore_pending and ws.phase in (Phase.PENDING, Phase.ARCHIVED):", "if ws.restore_pending:"
            ),
        ),
    ),
)

USERS = (
    Mutant(
        "TTL ignores that activity cannot be read",
        (
            Patch(
                TTL_RUNNER,
                "        seen = await self._activity.read()\n",
                "        try:\n"
                "            seen = await self._activity.read()\n"
                "        except Unreachable:\n"
                "            return\n",
            ),
        ),
    ),
    Mutant(
        "TTL overwrites a fresh wake",
        (Patch(COMMANDS, "slept = row.version == seen.version", "slept = row.operation is Operation.NONE"),),
    ),
    Mutant(
        "admission without the lock",
        (
            Patch(
                DATABASE,
                "        async with self._state.admission:\n            slots = await self._write(",
                "        if True:\n            slots = await self._write(",
            ),
        ),
    ),
    Mutant(
        "recover asks for no slot",
        (Patch(COMMANDS, "            if row.desired_state is Desired.RUNNING:\n", "            if False:\n"),),
    ),
    Mutant(
        "a withdrawn delete is carried out",
        (Patch(COMMANDS, "done = row.desired_state is Desired.DELETED", "done = True"),),
    ),
    Mutant(
        "an error that needs a person gives way to one that clears itself",
        (Patch(FAILURES, "return present.reason is found or (", "return present.reason is found or False and ("),),
    ),
    Mutant(
        "the next try comes at once",
        (Patch(FAILURES, "timedelta(seconds=seconds * (1 +", "timedelta(seconds=0 * seconds * (1 +"),),
    ),
    Mutant(
        "an outage counts against the deadline",
        (Patch(PLAN, 'Wait("the runtime does not answer", excused=True)', 'Wait("the runtime does not answer")'),),
    ),
    Mutant(
        "a phase changes without a ledger entry", (Patch(LEDGER, "if after.phase is not before.phase:", "if False:"),)
    ),
)

MUTANTS: tuple[Mutant, ...] = (*ORDER, *LEADER, *OBSERVATION, *HOME, *USERS, *COLLECTOR, *OUTAGES, *BACKEND_IDENTITY)
