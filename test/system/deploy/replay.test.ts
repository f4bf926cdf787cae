import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import test from 'ava';
import { onOurQueues } from '../../../deploy/temporal/client.ts';
import { fetchRun, parseRun } from '../../../deploy/temporal/history.ts';
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
const UI = 'http://ui.example:8233';
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
    await stack.client.workflow.getHandle(id).result();
  stored = (await client.single({ npi: found })).json;
  await stack.client.workflow.getHandle(stored.batch_id).result();
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
  stdin?: string,
): Promise<Ended> {
  const own = args.includes('--bundle')
    ? []
    : ['--bundle', testSetting('TEST_WORKFLOW_BUNDLE')];
  return runProgram('replay', [...args, ...own], { env: { ...here(), ...env }, stdin });
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

/** Returns the place of a text, such as `workflows/lookup.ts:154`. */
async function lineOf(file: string, text: string): Promise<string> {
  const lines = (
    await readFile(fileURLToPath(new URL(`../../../${file}`, import.meta.url)), 'utf8')
  ).split('\n');
  return `${file}:${lines.findIndex((line) => line.includes(text)) + 1}`;
}

const SLEEP = 'await (0,_temporalio_workflow__WEBPACK_IMPORTED_MODULE_1__.sleep)(1);';

test.serial(
  'replay shows the times, decisions, calls, and failures of a workflow run',
  async (t) => {
    const { code, stdout, stderr } = await replay([alone], { TEMPORAL_UI_URL: UI });
    t.deepEqual([code, stderr], [0, '']);
    t.regex(
      stdout,
      new RegExp(
        `^lookUpEmail ${alone}, begun 20\\d\\d-.*Z, pinned to build [0-9a-f]{12}\n`,
      ),
    );
    t.true(stdout.includes(`\n${UI}/namespaces/default/workflows/${alone}\n`));
    t.regex(stdout, /^ +1 +\+0\.000 s {2}WorkflowExecutionStarted lookUpEmail/m);
    t.regex(
      stdout,
      /s {2}MarkerRecorded planLookup: kind ask, .*sources \[rocketreach\]$/m,
    );
    t.regex(
      stdout,
      /s {2}ActivityTaskScheduled askVendor \(rocketreach for NPI 2000000101\)$/m,
    );
    t.regex(
      stdout,
      /\+1\d\.\d{3} s {2}ActivityTaskTimedOut askVendor \(.*\): activity ScheduleToClose timeout/m,
    );
    t.regex(stdout, /s {2}UpsertWorkflowSearchAttributes: Outcome failed: deadline$/m);
    t.regex(
      stdout,
      /s {2}WorkflowExecutionCompleted: status failed, reason deadline\nthis code fits the history\n$/,
    );
  },
);

test.serial(
  'replay finds a request without its own workflow through its batch',
  async (t) => {
    const requestId = stored.requests[0]?.request_id ?? '';
    const without = await replay([requestId]);
    t.is(without.code, 1);
    t.regex(
      without.stderr,
      /^replay: Temporal has no run of req_\w+ .* give the id of its batch, or set DATABASE_URL\n$/,
    );
    const { stdout } = await replay([requestId], { DATABASE_URL: stack.databaseUrl });
    t.true(stdout.startsWith(`enrichBatch ${stored.batch_id}, `));
    t.is((await replay([both.requests[0]?.request_id ?? ''])).code, 0);
  },
);

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
      const end = `WorkflowExecutionCompleted: .*\\ndoes not fit: \\[TMPRL1100\\] .*${message}.*\\n$`;
      t.regex(stdout, new RegExp(end));
    }
    const broken = await changed(
      'thrown',
      'const inbox = [];',
      'const inbox = []; null.x();',
    );
    const { code, stdout } = await replay([both.batch_id, '--bundle', broken]);
    t.is(code, 3);
    t.regex(stdout, /\ndoes not fit: Cannot read properties of null \(reading 'x'\)\n$/);
  },
);

test.serial(
  "replay reads histories from Temporal's CLI, UI, and HTTP API, and from our tests",
  async (t) => {
    const args = ['workflow', 'show', '--workflow-id', failed, '--output', 'json'];
    const address = ['--address', testSetting('TEST_TEMPORAL_ADDRESS')];
    const { stdout } = await promisify(execFile)(testSetting('TEST_TEMPORAL_CLI'), [
      ...args,
      ...address,
    ]);
    const { events } = JSON.parse(stdout);
    const run = await fetchRun(stack.client, failed);
    const shapes = [
      { events },
      events,
      { history: { events } },
      { workflowId: failed, history: { events } },
    ];
    for (const shape of shapes) t.deepEqual(parseRun(JSON.stringify(shape)), run);
    const metadata = run?.events.map(({ id }) =>
      JSON.stringify(run.history.events[id - 1]).includes('sdkMetadata'),
    );
    t.true(
      metadata?.includes(true),
      'by which the SDK knows the rules that it was written by',
    );

    const told = await replay(['--file', '-'], { TEMPORAL_ADDRESS: '' }, stdout);
    t.deepEqual(
      [told.code, told.stdout.split('\n').at(-2)],
      [0, 'this code fits the history'],
    );
    const decoded = JSON.stringify({ events }, (_key, value) => value?.payloads ?? value);
    for (const text of [
      decoded,
      '{}',
      '[]',
      'null',
      'no JSON',
      '{"events":[{"eventId":"1"}]}',
    ])
      t.throws(
        () => parseRun(text),
        { message: /^this is not a history: take / },
        text.slice(0, 40),
      );
  },
);

test.serial(
  'replay masks text in a history that looks like an email address',
  async (t) => {
    const history = JSON.parse(
      await readFile(
        fileURLToPath(new URL('../../histories/lookup-terminated.json', import.meta.url)),
        'utf8',
      ),
    );
    const text = JSON.stringify(history).replace(
      '"reason":"recorded"',
      '"reason":"asked by jane.roe@example.org \\u001b[2J"',
    );
    const { code, stdout } = await replay(['--file', '-'], {}, text);
    t.is(code, 0);
    t.true(
      stdout.includes('WorkflowExecutionTerminated: asked by *** \\u001b[2J'),
      stdout,
    );
  },
);

test.serial(
  'replay masks addresses in linear time, even before a word of 2 MB',
  async (t) => {
    const history = await readFile(
      fileURLToPath(new URL('../../histories/lookup-terminated.json', import.meta.url)),
      'utf8',
    );
    // A quadratic search would take about 2 * 10^12 steps. The end of such a long output may be lost
    // in the pipe.
    const word = 'a'.repeat(2_000_000);
    const reason = `jane@example.org @b ${word}`;
    const text = JSON.stringify(JSON.parse(history)).replace(
      '"reason":"recorded"',
      `"reason":"${reason}"`,
    );
    const { code, stdout } = await replay(['--file', '-'], {}, text);
    t.is(code, 0);
    t.true(stdout.includes('WorkflowExecutionTerminated: *** @b aaaa'));
  },
);

test.serial(
  'replay asks about runs of another build that do not fit, and fails with --all',
  async (t) => {
    const table = (stdout: string) =>
      stdout.split('\n').map((line) => line.trim().split(/ {2,}/));
    const fits = await replay(['--since', '1h']);
    t.is(fits.code, 0);
    t.deepEqual(table(fits.stdout).slice(0, 6), [
      ['WORKFLOW', 'RUNS', 'FIT', 'DO NOT', 'NEED NOT'],
      ['enrichBatch', '4', '4', '0', '0'],
      ['lookUpEmail', '4', '4', '0', '0'],
      ['deliver', '1', '1', '0', '0'],
      ['reverify', '0', '0', '0', '0'],
      ['submitUpload', '0', '0', '0', '0'],
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
          'bat_\\w+ does not fit: \\[TMPRL1100\\] .*\\n( +\\d+ .*\\n){1,5}' +
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
      /^warning: no run of reverify, submitUpload was replayed, so the code of these workflows was not checked$/m,
    );
  },
);

test.serial(
  'replay finds failed runs, or runs that match a filter, newest first',
  async (t) => {
    const runs = (stdout: string) =>
      stdout
        .match(/^(enrichBatch|lookUpEmail|deliver|reverify) +[1-9]/gm)
        ?.map((line) => line.replace(/ +/, ' '));
    t.deepEqual(runs((await replay(['--failed', '--since', '1h'])).stdout), [
      'lookUpEmail 1',
    ]);
    t.deepEqual(
      runs((await replay(['--query', `Npi = "${both.requests[0]?.npi}"`])).stdout),
      ['enrichBatch 2', 'lookUpEmail 1'],
    );
    t.deepEqual(runs((await replay(['--since', '1h', '--limit', '1'])).stdout), [
      'enrichBatch 1',
      'lookUpEmail 1',
      'deliver 1',
    ]);
    const nothing = await replay(['--since', '24h'], { TASK_QUEUE: 'nobodys' });
    t.is(nothing.code, 1);
    t.regex(
      nothing.stderr,
      /no run was found in the queue nobodys of the namespace \S+; check TASK_QUEUE/,
    );
    const none = await replay(['--query', 'Npi = "1"']);
    t.deepEqual([none.code, runs(none.stdout)], [0, undefined]);
  },
);

test.serial(
  'each error of replay is one sentence, with an exit code for its kind',
  async (t) => {
    for (const args of [
      [],
      ['bat_x', '--failed'],
      ['--inspect', '--failed'],
      ['--since', 'soon'],
    ]) {
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
        ['--failed'],
        { TEMPORAL_NAMESPACE: 'nowhere' },
        /^replay: .* has no namespace nowhere; .*\n$/,
      ],
      [
        ['--query', 'nonsense'],
        {},
        /^replay: Temporal failed a call: .*gRPC 3 INVALID_ARGUMENT: .*\n$/,
      ],
      [
        ['--file', 'nowhere.json'],
        {},
        /^replay: cannot use the file nowhere\.json \(ENOENT\); .*\n$/,
      ],
      [
        [failed, '--bundle', 'package.json'],
        {},
        /^replay: this file is not a bundle of workflows: .*\n$/,
      ],
      [
        [failed],
        { TEMPORAL_UI_URL: 'ui' },
        /^replay: the configuration is wrong:\n {2}TEMPORAL_UI_URL must be .*\n$/,
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

test.serial(
  'the debugger of replay --inspect stops before the workflows run',
  async (t) => {
    const { code, stops, lines } = await debug(
      [alone, '--inspect'],
      'activities.askVendor(',
    );
    t.deepEqual([code, stops], [0, 2]);
    t.is(lines[0], await lineOf('workflows/lookup.ts', 'activities.askVendor('));
  },
);

/**
 * Replays with a debugger attached, like an editor. At the first stop, it sets a breakpoint.
 * @param breakpoint a text in the line of the breakpoint
 * @returns the number of stops, and the lines of workflow code that were running at the last stop
 */
async function debug(args: readonly string[], breakpoint: string) {
  const {
    command,
    args: all,
    cwd,
    env,
  } = programCommand('replay', args, { env: here() });
  const bundle = ['--bundle', testSetting('TEST_WORKFLOW_BUNDLE')];
  const child = spawn(command, ['--inspect-port=0', ...all, ...bundle], { cwd, env });
  endWithThisProcess(child);
  const ended = new Promise<number | null>((resolve) => child.once('close', resolve));
  let said = '';
  let socket: WebSocket | null = null;
  child.stderr.on('data', (chunk: Buffer) => {
    said += chunk;
    if (said.includes('Waiting for the debugger to disconnect')) socket?.close();
  });
  const url = await eventually(async () => /ws:\/\/\S+/.exec(said)?.[0] ?? null);
  socket = new WebSocket(url);
  const seen = { stops: 0, lines: [] as string[] };
  let id = 0;
  const ask = (method: string, params = {}) => {
    id += 1;
    socket?.send(JSON.stringify({ id, method, params }));
  };
  let scriptId = '';
  socket.addEventListener('message', ({ data }) => {
    const { method, params, result } = JSON.parse(String(data));
    if (method === 'Debugger.paused') {
      seen.stops += 1;
      const [{ callFrameId, location }] = params.callFrames;
      scriptId = location.scriptId;
      if (seen.stops === 1) {
        ask('Debugger.searchInContent', { scriptId, query: breakpoint });
      } else {
        ask('Debugger.evaluateOnCallFrame', {
          callFrameId,
          expression: 'new Error().stack',
        });
      }
    } else if (result?.result?.[0]) {
      const [{ lineNumber }] = result.result;
      ask('Debugger.setBreakpoint', { location: { scriptId, lineNumber } });
      ask('Debugger.resume');
    } else if (typeof result?.result?.value === 'string') {
      seen.lines = [...result.result.value.matchAll(/workflows\/[\w-]+\.ts:\d+/g)].map(
        ([line]) => line,
      );
      ask('Debugger.resume');
    }
  });
  socket.addEventListener('open', () => {
    ask('Debugger.enable');
    ask('Runtime.runIfWaitingForDebugger');
  });
  return { code: await ended, ...seen };
}
