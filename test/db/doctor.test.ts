import { Client, Connection } from '@temporalio/client';
import test from 'ava';
import { type SQL, sql } from 'drizzle-orm';
import { pino } from 'pino';
import { balanceOf } from '../../db/accounts/credits.ts';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import type { Database, Transaction } from '../../db/connection/client.ts';
import { newId } from '../../db/connection/ids.ts';
import type { CheckResult, DoctorRules } from '../../db/doctor/check.ts';
import { diagnose, runChecks } from '../../db/doctor/doctor.ts';
import { listAudit } from '../../db/operations/audit.ts';
import { checkWorkflows } from '../../deploy/temporal/doctor.ts';
import { keepNamespace, reverifyScheduleId } from '../../deploy/temporal/namespace.ts';
import { WORKFLOWS } from '../../workflows/messages.ts';
import { freshDatabase, openTestDatabase, testSetting } from '../support/database.ts';
import { logAttempt, resendOne } from '../support/deliveries.ts';
import { type Life, live } from '../support/doctor-life.ts';
import { type Plant, plantsIn, RECOUNT } from '../support/doctor-plants.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import { eventually, RULES } from '../support/organization.ts';
import { type Ended, runProgram } from '../support/programs.ts';

const DOCTOR_RULES: DoctorRules = { ...RULES, webhookScheduleMs: [0, 5000, 300_000] };

const database = freshDatabase(test);
const { db } = database;
let life: Life;

test.before(async () => {
  life = await live(db);
});

/** Returns the codes of the checks with findings. */
function codes(checks: readonly CheckResult[]): string[] {
  return checks.filter(({ findings }) => findings > 0).map(({ code }) => code);
}

class Undone extends Error {}

/**
 * Corrupts the database, runs `look`, and rolls back. Triggers are off, because they would refuse
 * most corruptions.
 */
async function corrupted<T>(
  statements: readonly SQL[],
  look: (tx: Transaction) => Promise<T>,
): Promise<T> {
  const seen: T[] = [];
  const work = db.drizzle.transaction(async (tx) => {
    await tx.execute(sql`set local session_replication_role = replica`);
    for (const statement of statements) await tx.execute(statement);
    seen.push(await look(tx));
    throw new Undone();
  });
  await work.catch((error: unknown) => {
    if (!(error instanceof Undone)) throw error;
  });
  const [result] = seen;
  if (result === undefined) throw new Error('nothing was seen');
  return result;
}

async function corrupt(on: Database, statements: readonly SQL[]): Promise<void> {
  await on.drizzle.transaction(async (tx) => {
    await tx.execute(sql`set local session_replication_role = replica`);
    for (const statement of statements) await tx.execute(statement);
  });
}

async function named(tx: Transaction, { subject }: Plant): Promise<string> {
  if (typeof subject === 'string') return subject;
  const [row] = await tx.execute<Record<string, string>>(subject);
  return Object.values(row ?? {})[0] ?? '';
}

function doctor(
  url: string,
  args: readonly string[],
  temporalAddress = '',
): Promise<Ended> {
  const env = { DATABASE_URL: url, TEMPORAL_ADDRESS: temporalAddress };
  return runProgram('operator', ['doctor', ...args], { env });
}

test.serial(
  'doctor finds nothing in a healthy database that contains all kinds of requests',
  async (t) => {
    t.deepEqual(codes(await diagnose(db, DOCTOR_RULES)), []);
  },
);

test.serial('every check of doctor is tested with a corrupted database', async (t) => {
  const checks = await diagnose(db, DOCTOR_RULES);
  t.deepEqual(checks.map(({ code }) => code).sort(), Object.keys(plantsIn(life)).sort());
});

test.serial(
  'each corruption of the database is found by the check for it and by no other',
  async (t) => {
    for (const [code, plant] of Object.entries(plantsIn(life))) {
      const { checks, subject } = await corrupted(plant.statements, async (tx) => ({
        checks: await runChecks(tx, DOCTOR_RULES),
        subject: await named(tx, plant),
      }));
      t.deepEqual(codes(checks), [code], code);
      const found = checks.find((check) => check.code === code);
      t.is(found?.findings, 1, code);
      t.true(
        found?.examples[0]?.startsWith(subject),
        `${code}: ${found?.examples[0]} is not ${subject}`,
      );
    }
    t.deepEqual(codes(await diagnose(db, DOCTOR_RULES)), []);
  },
);

test.serial(
  'doctor finds a missing balance, delivery, or trigger, and an invalid index',
  async (t) => {
    const plants: [string, SQL][] = [
      [
        'balance_differs',
        sql`delete from credit_balances where organization_id = ${life.organizationId}`,
      ],
      [
        'batch_deliveries',
        sql`delete from webhook_deliveries where id = ${life.telling.deliveries[0] ?? ''}`,
      ],
      ['guard_missing', sql`drop trigger requests_guard_state on requests`],
      [
        'guard_missing',
        sql`update pg_index set indisvalid = false where indexrelid = 'ledger_entries_once'::regclass`,
      ],
    ];
    for (const [code, statement] of plants) {
      const found = await corrupted([statement], async (tx) =>
        codes(await runChecks(tx, DOCTOR_RULES)),
      );
      t.deepEqual(found, [code]);
    }
  },
);

test.serial(
  'doctor finds erased addresses in the evidence and in imported NPPES endpoints',
  async (t) => {
    const npi = '2000000044';
    const tombstones = sql`insert into suppressions (kind, value, origin) values
    ('email', encode(sha256('left@clinic.example'), 'hex'), 'erasure'), ('npi', '2000000309', 'erasure')`;
    const endpoint = (of: string, text: string) =>
      sql`insert into provider_endpoints (npi, kind, endpoint) values (${of}, 'OTHERS', ${text})`;
    const plants: [string, SQL][] = [
      [
        `evidence ${npi}`,
        sql`insert into email_checks (npi, email, kind, source, verdict)
      values (${npi}, 'left@clinic.example', 'named', 'test', 'valid')`,
      ],
      [`endpoint ${npi}`, endpoint(npi, 'mailto:Left@clinic.example')],
      ['endpoint 2000000309', endpoint('2000000309', 'any@clinic.example')],
    ];
    const innocent = [
      endpoint(npi, 'https://left@clinic.example/'),
      endpoint('2000000309', 'https://fhir.clinic.example/'),
      endpoint(npi, 'stays@clinic.example'),
    ];
    for (const [subject, plant] of plants) {
      const checks = await corrupted([tombstones, ...innocent, plant], (tx) =>
        runChecks(tx, DOCTOR_RULES),
      );
      const found = checks.find(({ code }) => code === 'erased_but_held');
      t.deepEqual(
        [found?.findings, found?.examples[0]?.startsWith(subject)],
        [1, true],
        subject,
      );
    }
  },
);

test.serial(
  'doctor finds a webhook that was sent before its request or batch was final',
  async (t) => {
    for (const delivery of [life.refused.delivery, life.told.delivery]) {
      const earlier = sql`
      update webhook_attempts set started_at = started_at - interval '1 hour' where delivery_id = ${delivery}`;
      const checks = await corrupted([earlier], (tx) => runChecks(tx, DOCTOR_RULES));
      const found = checks.filter(({ findings }) => findings > 0);
      t.like(found, [{ code: 'delivery_too_early', examples: [delivery] }]);
    }
  },
);

test.serial(
  'doctor finds a replay of a charge that is 1 ms older than the replay window',
  async (t) => {
    const [charge] = life.stored.requestIds;
    const [replay] = life.replayed.requestIds;
    for (const [ms, expected] of [
      [0, []],
      [1, ['replay_without_charge']],
    ] as const) {
      const at = sql`(select settled_at - interval '30 days' - make_interval(secs => ${ms / 1000}::float8)
                      from requests where id = ${replay})`;
      const statements = [
        sql`update ledger_entries set created_at = ${at} where request_id = ${charge}`,
        sql`update entitlements set charged_at = ${at} where request_id = ${charge}`,
        sql`update requests set settled_at = ${at} where id = ${charge}`,
        ...RECOUNT,
      ];
      const found = await corrupted(statements, async (tx) =>
        codes(await runChecks(tx, DOCTOR_RULES)),
      );
      t.deepEqual(found, [...expected], `${ms} ms past the window`);
    }
  },
);

test.serial(
  'doctor finds a charge for type "any" if the NPI was already charged for a type',
  async (t) => {
    // 'any' was charged for a personal email although a professional one had been paid for.
    const [, second = ''] = life.bulk.requestIds;
    const statements = [
      sql`update requests set replayed = false, email_type = 'personal', settled_at = settled_at + interval '1 second'
         where id = ${second}`,
      sql`update ledger_entries set kind = 'charge' where request_id = ${second} and kind = 'release'`,
      sql`update ledger_entries e set created_at = r.settled_at from requests r
         where r.id = e.request_id and r.id = ${second} and e.kind = 'charge'`,
      sql`insert into entitlements select organization_id, npi, email_type, id, settled_at
          from requests where id = ${second}`,
      sql`update credit_balances set used = used + 1, available = available - 1
         where organization_id = ${life.organizationId}`,
      ...RECOUNT,
    ];
    const seen = await corrupted(
      statements,
      async (tx) => await runChecks(tx, DOCTOR_RULES),
    );
    t.deepEqual(codes(seen), ['charged_twice']);
    const wanted = sql`update requests set requested_type = 'personal' where id = ${second}`;
    const spared = await corrupted(
      [...statements, wanted],
      async (tx) => await runChecks(tx, DOCTOR_RULES),
    );
    t.false(
      codes(spared).includes('charged_twice'),
      'who wants a personal one was not satisfied',
    );
  },
);

test.serial('doctor prints one line and exits with 0 if it finds nothing', async (t) => {
  const { code, stdout, stderr } = await doctor(database.url, []);
  t.deepEqual([code, stderr], [0, '']);
  t.regex(
    stdout,
    /^Workflows were not checked: TEMPORAL_ADDRESS is not set\.\n\n\d{2} checks in \d+\.\d s: no findings\n$/,
  );
});

test('doctor --fix makes and audits the safe repairs, and prints the other problems', async (t) => {
  await using own = await openTestDatabase();
  const ownDb = own.db;
  const ownLife = await live(ownDb);
  const plants = plantsIn(ownLife);
  const before = await balanceOf(ownDb, ownLife.organizationId);
  const repairable = [
    'result_without_charge',
    'hold_not_settled',
    'batch_completed_count',
    'delivery_attempts',
    'entitlement_unearned',
    'request_overdue',
    // The balance is corrupted last, because the other corruptions change the ledger and so the
    // balance.
    'balance_differs',
  ];
  for (const code of repairable) {
    const statements = plants[code]?.statements ?? [];
    // The other statements plant a request that is almost overdue, and the repair would find it
    // overdue.
    await corrupt(
      ownDb,
      code === 'request_overdue' ? statements.slice(0, 1) : statements,
    );
  }
  await corrupt(ownDb, [
    sql`delete from entitlements where request_id = ${ownLife.personal.requestIds[0]}`,
  ]);
  await corrupt(ownDb, [
    sql`update ledger_entries set created_at = created_at - interval '1 millisecond'
         where request_id = ${ownLife.stored.requestIds[0]} and kind = 'charge'`,
  ]);

  const sick = await doctor(own.url, ['--json']);
  t.deepEqual([sick.code, sick.stderr], [3, '']);
  const { checks } = JSON.parse(sick.stdout) as {
    checks: { code: string; findings: number; repairable: boolean }[];
  };
  const found = checks.filter(({ findings }) => findings > 0);
  t.deepEqual(
    found.map(({ code }) => code).sort(),
    [...repairable, 'entitlement_missing', 'charge_time'].sort(),
  );
  t.deepEqual(
    found.filter((check) => !check.repairable).map(({ code }) => code),
    ['charge_time'],
  );

  const { operator } = operatorOn(own.url);
  const refused = await operator('doctor', '--fix', '--actor', 'tester');
  t.is(refused.code, 2);
  t.regex(refused.stderr, /--reason/);
  t.is(
    (await listAudit(ownDb, null, 100)).filter(({ action }) => action === 'doctor.repair')
      .length,
    0,
  );

  const first = await doctor(own.url, ['--fix', ...WHY]);
  t.deepEqual([first.code, first.stderr], [3, ''], 'something is left');
  t.regex(first.stdout, /^hold_not_settled +req_\S+ +repaired +{"release":1}$/m);
  t.regex(first.stdout, /^result_without_charge +req_\S+ +repaired +{"charge":1}$/m);
  t.regex(
    first.stdout,
    /^charge_time: charge with another time.*\n {2}.*\n {2}1 found {2}req_\w+$/m,
  );
  t.regex(first.stdout, /: 1 finding\n$/);

  const records = (await listAudit(ownDb, null, 100)).filter(
    ({ action }) => action === 'doctor.repair',
  );
  t.deepEqual(
    records.map(({ details }) => (details as { check: string }).check).sort(),
    [...repairable, 'entitlement_missing'].sort(),
  );
  t.true(records.every(({ actor, reason }) => actor === 'tester' && reason === 'a test'));
  t.true(
    records.every(({ organizationId }) => organizationId === ownLife.organizationId),
  );

  await corrupt(ownDb, [
    sql`update ledger_entries e set created_at = r.settled_at from requests r
         where r.id = e.request_id and e.kind = 'charge'`,
  ]);
  const second = await doctor(own.url, ['--fix', ...WHY]);
  t.is(second.code, 0, second.stdout);
  t.regex(second.stdout, /^REPAIRS\n\(none\)$/m);
  t.deepEqual(codes(await diagnose(ownDb, DOCTOR_RULES)), []);
  const after = await balanceOf(ownDb, ownLife.organizationId);
  t.deepEqual(
    after,
    { ...before, held: before.held - 1, available: before.available + 1 },
    'one was refunded',
  );
});

test('doctor exits with 1 without PostgreSQL, and with 2 for a wrong option', async (t) => {
  const away = await doctor('postgres://127.0.0.1:1/x', []);
  t.deepEqual([away.code, away.stdout], [1, '']);
  t.regex(away.stderr, /^operator: cannot reach PostgreSQL/);
  const wrong = await operatorOn(database.url).operator('doctor', '--fast');
  t.deepEqual([wrong.code, wrong.stdout], [2, '']);
  t.regex(wrong.stderr, /--fast/);
});

test('doctor prints its findings even if PostgreSQL takes no writes', async (t) => {
  await using own = await openTestDatabase();
  const name = sql.identifier(new URL(own.url).pathname.slice(1));
  await own.sql`revoke delete on stored_emails from npe_worker`;
  await own.db.drizzle.execute(
    sql`alter database ${name} set default_transaction_read_only = on`,
  );
  const { code, stdout } = await doctor(own.url, []);
  t.is(code, 3);
  t.regex(stdout, /^right_missing: /m);
  t.regex(stdout, /still show its last run: PostgreSQL takes no writes\.$/m);
});

test('doctor finds open work without a workflow, and workflows without open work', async (t) => {
  await using own = await openTestDatabase();
  const ownDb = own.db;
  const address = testSetting('TEST_TEMPORAL_ADDRESS');
  const connection = await Connection.connect({ address });
  t.teardown(() => connection.close());
  const client = new Client({ connection });
  const { open, running, bulk, told, refused, telling, organizationId } =
    await live(ownDb);
  // This queue has no worker in this test, so the workflows stay open.
  const start = (type: string, workflowId: string) =>
    client.workflow.start(type, { taskQueue: 'enrichment', workflowId, args: [{}] });
  const by = { actor: 'test', reason: 'test' };
  await suspendWebhooks(ownDb, by, organizationId, false);
  // The first resend was requested just now, so its workflow may still be missing.
  const [fresh = '', retried = ''] = telling.deliveries;
  for (const delivery of [fresh, retried])
    await logAttempt(ownDb, delivery, 410, 'failed');
  for (const delivery of [fresh, retried, refused.delivery, told.delivery]) {
    await resendOne(ownDb, delivery);
  }
  for (const delivery of [retried, refused.delivery])
    await logAttempt(ownDb, delivery, 500, 'pending');
  await logAttempt(ownDb, told.delivery, 204, 'delivered');
  const ago = sql`now() - interval '61 seconds'`;
  const longAgo = sql`now() - interval '121 seconds'`;
  const [, , , final = ''] = bulk.requestIds;
  const resent = sql`${told.batchId}, ${refused.batchId}, ${telling.batchId}`;
  await corrupt(ownDb, [
    sql`update batches set started_at = ${ago} where id in (${open.batchId}, ${running.batchId}, ${resent})`,
    sql`update batches set updated_at = ${longAgo} where id in (${bulk.batchId}, ${resent})`,
    sql`update requests set settled_at = ${ago} where id = ${final} or batch_id = ${refused.batchId}`,
    ...RECOUNT,
    sql`update webhook_deliveries set due_at = ${ago} where id in (${refused.delivery}, ${retried})`,
  ]);
  const handles = await Promise.all([
    start(WORKFLOWS.batch, running.batchId),
    start(WORKFLOWS.batch, bulk.batchId),
    start(WORKFLOWS.deliver, retried),
    start(WORKFLOWS.lookup, final),
    start(WORKFLOWS.lookup, open.requestIds[0]),
    // Its request has been final for less than 60 s.
    start(WORKFLOWS.lookup, told.requestIds[0]),
  ]);
  // Temporal lists a running workflow some time after its start.
  await eventually(async () => {
    // Temporal's dev server may time out.
    const checks = await checkWorkflows(ownDb, client, 'enrichment').catch(() => []);
    const examples = checks.flatMap((check) => check.examples);
    return examples.includes(bulk.batchId) && examples.includes(final) ? true : null;
  });
  const ended = await doctor(own.url, [], address);
  t.deepEqual([ended.code, ended.stderr], [3, '']);
  const found = (code: string, ...ids: string[]) =>
    t.regex(
      ended.stdout,
      new RegExp(`^${code}: .*\n.*\n  ${ids.length} found  ${ids.join('  ')}$`, 'm'),
    );
  found('workflow_not_running', refused.delivery, open.batchId);
  found('workflow_left_open', bulk.batchId);
  found('lookup_workflow_left_open', final);
  t.is((await doctor(own.url, ['--offline'], address)).code, 0);
  await Promise.all(handles.map((handle) => handle.terminate()));

  // A workflow that has just closed is no finding, even if Temporal's list of running workflows
  // still contains it.
  async function* lag() {
    yield { workflowId: bulk.batchId, type: WORKFLOWS.batch };
    yield { workflowId: final, type: WORKFLOWS.lookup };
  }
  const lagging = Object.assign(Object.create(client), {
    workflow: Object.assign(Object.create(client.workflow), { list: lag }),
  });
  const results = await checkWorkflows(ownDb, lagging, 'enrichment');
  const leftOpen = results.filter(
    ({ code, findings }) => code.endsWith('_left_open') && findings > 0,
  );
  t.deepEqual(leftOpen, []);

  const away = await doctor(own.url, [], '127.0.0.1:1');
  t.deepEqual([away.code, away.stderr], [3, '']);
  t.regex(away.stdout, /^temporal_unreachable: .*\n.*\n {2}1 found$/m);
});

test('doctor finds a workflow that fails repeatedly and a missing or paused Schedule', async (t) => {
  await using own = await openTestDatabase();
  const ownDb = own.db;
  const connection = await Connection.connect({
    address: testSetting('TEST_TEMPORAL_ADDRESS'),
  });
  const client = new Client({ connection });
  const { namespace } = client.options;
  const name = `enrichment-${newId('req')}`;
  t.teardown(() => connection.close());
  const findings = async () => {
    // On a busy machine, Temporal's dev server may time out while it describes a Schedule.
    const checks = await eventually(() =>
      checkWorkflows(ownDb, client, name).catch(() => null),
    );
    const found = checks.filter(({ findings }) => findings > 0);
    return found.map(({ code, examples }) => [code, ...examples].join(' ')).sort();
  };
  const schedule = client.schedule.getHandle(reverifyScheduleId(name));
  const idle = `schedule_not_running ${schedule.scheduleId}`;
  t.deepEqual(await findings(), [`${idle}: missing`]);
  await keepNamespace(client, name, 3_600_000, pino({ level: 'silent' }));
  t.deepEqual(await findings(), []);
  await schedule.pause('test by Tom');
  t.deepEqual(await findings(), [`${idle}: paused, test by Tom`]);
  // An operator paused it on purpose, so it stays paused.
  await keepNamespace(client, name, 3_600_000, pino({ level: 'silent' }));
  t.deepEqual(await findings(), [`${idle}: paused, test by Tom`]);
  await schedule.delete();
  await keepNamespace(client, name, 3_600_000, pino({ level: 'silent' }));

  const ids = [newId('bat'), newId('req')] as const;
  const types = [WORKFLOWS.batch, WORKFLOWS.lookup];
  const started = await Promise.all(
    ids.map((workflowId, index) =>
      client.workflow.start(types[index] ?? '', {
        taskQueue: name,
        workflowId,
        args: [{}],
      }),
    ),
  );
  const [stuck, shaky] = ids;
  const failures = new Map<string, number>();
  while ((failures.get(stuck) ?? 0) < 3) {
    const { taskToken, workflowExecution } = await client.withDeadline(
      Date.now() + 30_000,
      () =>
        client.workflowService.pollWorkflowTaskQueue({ namespace, taskQueue: { name } }),
    );
    const id = workflowExecution?.workflowId ?? '';
    failures.set(id, (failures.get(id) ?? 0) + 1);
    // The second workflow fails only twice, as after a restart of a worker.
    if (id === shaky && (failures.get(id) ?? 0) > 2) continue;
    await client.workflowService.respondWorkflowTaskFailed({
      namespace,
      taskToken,
      cause: 1,
    });
  }
  await eventually(async () => ((await findings()).length > 0 ? true : null));
  t.deepEqual(await findings(), [`workflow_task_failing ${stuck}`]);
  await Promise.all(started.map((handle) => handle.terminate()));
  await schedule.delete();
});
