import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { onOurQueues } from '../../../deploy/temporal/client.ts';
import { fetchRun } from '../../../deploy/temporal/history.ts';
import { reverifyScheduleId } from '../../../deploy/temporal/namespace.ts';
import { fresh, temporaryFolder, testSetting } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { bundleWithBug, PLANTED } from '../../support/planted.ts';
import {
  type Ended,
  endWithThisProcess,
  programCommand,
  runProgram,
} from '../../support/programs.ts';
import { startStack } from '../../support/stack.ts';
import { ordinaryNpis } from '../../support/vendors.ts';

// Runs `npm run replay` on real runs, with this build and with builds that differ in one place.

const stack = fresh(test, () => startStack({ lookupTimeoutMs: 15_000 }));
const folder = temporaryFolder(test.after.always);
/** The vendor hangs, so the request fails. */
const HANGING = '2000000101';

/** Four batches, four lookups, a delivery. */
const RUNS = 9;

type Client = Awaited<ReturnType<typeof stack.organization>>;
let client: Client;
/**
 * The runs: a batch of two NPIs, one whose only request fails, one that is final at the submit, and
 * one whose webhook is delivered at the second attempt.
 */
let both: Awaited<ReturnType<Client['bulk']>>['json'];
let failed: string;
let alone: string;
let stored: Awaited<ReturnType<Client['single']>>['json'];
let deliveryId: string;

test.before(async () => {
  // Pauses the Schedule, because the tests would count its runs too.
  await stack.client.schedule.getHandle(reverifyScheduleId(stack.taskQueue)).pause();
  client = await stack.organization();
  const [found = '', other = ''] = ordinaryNpis('found', 2);
  both = (await client.bulk({ npis: [found, ...ordinaryNpis('not_found', 1)] })).json;
  const single = (await client.single({ npi: HANGING })).json;
  [failed, alone] = [single.batch_id, single.requests[0]?.request_id ?? ''];
  const webhook = { url: `${stack.receiver.url}/fail/1/replay` };
  const third = (await client.bulk({ npis: [other], webhook })).json.batch_id;
  for (const id of [both.batch_id, failed, third])
    await (await stack.startedWorkflow(id)).result();
  stored = (await client.single({ npi: found })).json;
  await (await stack.startedWorkflow(stored.batch_id)).result();
  const path = `/api/v1/batch/${third}/deliveries`;
  const { deliveries } = (await client.get<{ deliveries: { id: string }[] }>(path)).json;
  deliveryId = deliveries[0]?.id ?? '';
  await stack.client.workflow.getHandle(deliveryId).result();
  // Lists of workflows lag behind.
  const closed = `${onOurQueues(stack.taskQueue)} and ExecutionStatus = "Completed"`;
  await eventually(
    async () => (await stack.client.workflow.count(closed)).count === RUNS || null,
  );
});

/** Replays with this build, unless `args` has another bundle. */
function replay(
  args: readonly string[],
  env: Record<string, string> = {},
): Promise<Ended> {
  const own = args.includes('--bundle')
    ? []
    : ['--bundle', testSetting('TEST_WORKFLOW_BUNDLE')];
  return runProgram('replay', [...args, ...own], { env: { ...here(), ...env } });
}

function here() {
  return {
    TEMPORAL_ADDRESS: testSetting('TEST_TEMPORAL_ADDRESS'),
    TASK_QUEUE: stack.taskQueue,
  };
}

/** Writes this build with one text replaced. @returns the path of the file */
async function changed(name: string, from: string, to: string): Promise<string> {
  const code = await readFile(testSetting('TEST_WORKFLOW_BUNDLE'), 'utf8');
  const file = join(folder, `${name}.js`);
  if (code.split(from).length !== 2) throw new Error(`the bundle has no single ${from}`);
  await writeFile(
    file,
    code.replace(from, () => to),
  );
  return file;
}

const SLEEP = 'await (0,_temporalio_workflow__WEBPACK_IMPORTED_MODULE_1__.sleep)(1);';

test.serial('replay says of each named run whether it fits the code', async (t) => {
  const ids = [alone, both.batch_id, deliveryId];
  const { code, stdout, stderr } = await replay(ids);
  t.deepEqual([code, stderr], [0, '']);
  t.is(stdout, ids.map((id) => `${id} fits this code\n`).join(''));
});

test.serial("a fetched run has the SDK's metadata, for its replay", async (t) => {
  const run = await fetchRun(stack.client, failed);
  t.is(run?.type, 'enrichBatch');
  t.true(JSON.stringify(run?.history).includes('sdkMetadata'));
});

test.serial('replay of a request without a run asks for its batch', async (t) => {
  const { code, stderr } = await replay([stored.requests[0]?.request_id ?? '']);
  t.is(code, 1);
  t.regex(
    stderr,
    /^replay: Temporal has no run of req_\w+ .* give the id of its batch\n$/,
  );
});

test.serial(
  "replay prints the SDK's message where the code contradicts a run",
  async (t) => {
    const lookup = both.requests[1]?.request_id ?? '';
    const again = 'of [...plan.sources, ...plan.sources])';
    const id = "workflowId: 'x' + requestId,";
    const cases = [
      [lookup, 'of plan.sources)', again, 'Missing associated machine for LocalActivity'],
      [
        both.batch_id,
        'workflowId: requestId,',
        id,
        'Child workflow id .* does not match',
      ],
      [
        lookup,
        "if (status !== 'completed')",
        'if (status === null)',
        'Complete workflow machine does not handle this event: .*UpsertWorkflowSearchAttr',
      ],
    ] as const;
    for (const [index, [run, from, to, message]] of cases.entries()) {
      const bundle = await changed(`misfit-${index}`, from, to);
      const { code, stdout } = await replay([run, '--bundle', bundle]);
      t.is(code, 3);
      const misfit = `^${run} does not fit: \\[TMPRL1100\\] .*${message}.*\\n$`;
      t.regex(stdout, new RegExp(misfit));
    }
    const broken = await changed(
      'thrown',
      'const inbox = [];',
      'const inbox = []; null.x();',
    );
    const { code, stdout } = await replay([both.batch_id, '--bundle', broken]);
    t.is(code, 3);
    t.regex(stdout, / does not fit: Cannot read properties of null \(reading 'x'\)\n$/);
  },
);

test.serial(
  'replay asks about runs of another build that do not fit, and fails with --all',
  async (t) => {
    const table = (stdout: string) =>
      stdout.split('\n').map((line) => line.trim().split(/ {2,}/));
    const fits = await replay(['--since', '1h']);
    t.is(fits.code, 0);
    t.deepEqual(table(fits.stdout).slice(0, 7), [
      ['WORKFLOW', 'RUNS', 'FIT', 'DO NOT', 'NEED NOT'],
      ['enrichBatch', '4', '4', '0', '0'],
      ['lookUpEmail', '4', '4', '0', '0'],
      ['deliver', '1', '1', '0', '0'],
      ['reverify', '0', '0', '0', '0'],
      ['submitUpload', '0', '0', '0', '0'],
      ['sendTestEvent', '0', '0', '0', '0'],
    ]);
    const pinned = await changed(
      'pinned',
      'const inbox = [];',
      `const inbox = []; ${SLEEP}`,
    );
    const others = await replay(['--since', '1h', '--bundle', pinned]);
    t.deepEqual(
      [others.code, table(others.stdout)[1]],
      [4, ['enrichBatch', '4', '0', '0', '4']],
    );
    t.regex(
      others.stdout,
      new RegExp(
        '\\n\\ndid you mean to change enrichBatch\\? 4 of its 4 runs no longer fit, for example:\\n' +
          'bat_\\w+ does not fit: \\[TMPRL1100\\] .*\\n' +
          'if you did, go on: these runs end on their builds \\([0-9a-f]{12}\\); if not, do not release\\n$',
      ),
    );
    t.is(others.stdout.match(/did you mean/g)?.length, 1);
    const all = await replay(['--since', '1h', '--bundle', pinned, '--all']);
    t.deepEqual(
      [all.code, all.stdout.match(/^bat_\w+ does not fit: \[/gm)?.length],
      [3, 4],
    );

    const delivery = await changed(
      'delivery',
      'async function deliver({ deliveryId }) {',
      `async function deliver({ deliveryId }) { ${SLEEP}`,
    );
    const gate = await replay(['--since', '1h', '--bundle', delivery]);
    t.is(gate.code, 3);
    t.true(
      gate.stdout.startsWith(`${deliveryId} does not fit: [TMPRL1100] `),
      gate.stdout,
    );
  },
);

test.serial(
  'replay fails if the code throws, even in a run that is pinned to another build',
  async (t) => {
    const bundle = await bundleWithBug(folder, 'enrichBatch');
    const { code, stdout } = await replay(['--since', '1h', '--bundle', bundle]);
    t.is(code, 3, stdout);
    t.is(stdout.match(/^bat_\w+ does not fit: /gm)?.length, 4, stdout);
    t.regex(stdout, PLANTED);
    t.regex(stdout, /^enrichBatch +4 +0 +4 +0$/m);
  },
);

/** Writes this build with a loop in each lookup. @param begins runs before the loop */
function looping(name: string, begins: string): Promise<string> {
  const head = 'async function findEmail(request) {';
  return changed(name, head, `${head} ${begins} for (;;) await null;`);
}

test.serial('replay fails and stops at a run that does not end', async (t) => {
  const bundle = await looping('loop', '');
  const args = ['--since', '1h', '--bundle', bundle, '--timeout', '10'];
  const { code, stdout } = await replay(args);
  t.is(code, 3, stdout);
  t.regex(stdout, /^req_\w+ does not fit: its replay did not end within 10 s$/m);
  t.regex(stdout, /^enrichBatch +4 +4 +0 +0\nlookUpEmail +1 +0 +1 +0$/m);
  t.regex(stdout, /^stopped at a run that did not end; no further run was replayed$/m);
});

for (const [signal, exitCode] of [
  ['SIGTERM', 1],
  ['SIGKILL', null],
] as const) {
  test.serial(`replay ends on ${signal} while a workflow loops`, async (t) => {
    // Leaves the sandbox, because the console is silent during a replay.
    const outside = "globalThis.constructor.constructor('return process')()";
    const bundle = await looping(signal, `${outside}.stdout.write('loops');`);
    const options = { env: here() };
    const program = programCommand('replay', [alone, '--bundle', bundle], options);
    const { command, args, cwd, env } = program;
    const child = spawn(command, args, { cwd, env });
    endWithThisProcess(child);
    let output = '';
    child.stdout.on('data', (chunk: Buffer) => (output += chunk));
    // The processes share a pipe, which is closed when the last of them has ended.
    const closed = once(child, 'close');
    await eventually(async () => output.includes('loops') || null);
    child.kill(signal);
    t.deepEqual(await closed, [exitCode, exitCode === null ? signal : null]);
  });
}

test.serial(
  'replay warns about a workflow type without any runs to replay',
  async (t) => {
    const { code, stdout } = await replay(['--since', '1h']);
    t.is(code, 0);
    t.regex(
      stdout,
      /^warning: no run of reverify, submitUpload, sendTestEvent was replayed, so the code of these workflows was not checked$/m,
    );
  },
);

test.serial('replay takes the newest runs of each workflow, up to --limit', async (t) => {
  const { stdout } = await replay(['--since', '1h', '--limit', '1']);
  const runs = stdout
    .match(/^(enrichBatch|lookUpEmail|deliver|reverify) +[1-9]/gm)
    ?.map((line) => line.replace(/ +/, ' '));
  t.deepEqual(runs, ['enrichBatch 1', 'lookUpEmail 1', 'deliver 1']);
  const nothing = await replay(['--since', '24h'], { TASK_QUEUE: 'nobodys' });
  t.is(nothing.code, 1);
  t.regex(
    nothing.stderr,
    /no run was found in the queue nobodys of the namespace \S+; check TASK_QUEUE/,
  );
});

test.serial(
  'each error of replay is one sentence, with an exit code for its kind',
  async (t) => {
    for (const args of [[], ['bat_x', '--since', '1h'], ['--since', 'soon']]) {
      const { code, stdout, stderr } = await replay(args);
      t.deepEqual([code, stdout], [2, ''], args.join(' '));
      t.regex(stderr, /^error: .*\nAdd --help to see how it is used\.\n$/s);
    }
    const cases: readonly (readonly [
      args: readonly string[],
      env: Record<string, string>,
      stderr: RegExp,
    ])[] = [
      [['bat_x'], {}, /^replay: Temporal has no run of bat_x .*\n$/],
      [
        ['bat_x'],
        { TEMPORAL_ADDRESS: '127.0.0.1:1' },
        /^replay: Temporal at 127\.0\.0\.1:1 cannot be reached; .*\n$/,
      ],
      [
        ['--since', '1h'],
        { TEMPORAL_NAMESPACE: 'nowhere' },
        /^replay: .* has no namespace nowhere; .*\n$/,
      ],
      [
        [failed, '--bundle', 'package.json'],
        {},
        /^replay: this file is not a bundle of workflows: .*\n$/,
      ],
    ];
    for (const [args, env, said] of cases) {
      const { code, stdout, stderr } = await replay(args, env);
      t.deepEqual([code, stdout], [1, ''], args.join(' '));
      t.regex(stderr, said);
    }
    const { code, stdout } = await replay(['--help']);
    t.is(code, 0);
    t.regex(
      stdout,
      /^Exit codes: 0 all runs fit, 4 only runs .*, 3 at least one run .* 2 wrong\s+usage/ms,
    );
  },
);
