import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import test from 'ava';
import { versionOf } from '../../../deploy/temporal/versions.ts';
import { bundleWorkflows } from '../../../deploy/temporal/workers.ts';
import {
  asRole,
  SECRETS_KEY,
  temporaryFolder,
  testSetting,
} from '../../support/database.ts';
import { tasksOf } from '../../support/histories.ts';
import { eventually, onceServed } from '../../support/organization.ts';
import { startApiProcess, workerProcesses } from '../../support/programs.ts';
import { startStack } from '../../support/stack.ts';
import { ordinaryNpis } from '../../support/vendors.ts';

// Runs the commands of rollout.md with two builds and running batches.

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
const folder = temporaryFolder(test.after.always);
const workers = workerProcesses();
test.after.always(() => workers.stop());

/** Returns the commands under a heading of the page. */
async function commandsUnder(heading: string): Promise<string> {
  const page = await readFile(join(ROOT, 'deploy/rollout.md'), 'utf8');
  const section =
    page.split(/^## /m).find((text) => text.startsWith(`${heading}\n`)) ?? '';
  const blocks = [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(
    ([, block = '']) => block,
  );
  if (blocks.length === 0) throw new Error(`the page has no commands under ${heading}`);
  return blocks.join('');
}

test('the commands of rollout.md roll a release out and back without failed requests', async (t) => {
  const taskQueue = `enrichment-${randomBytes(8).toString('hex')}`;
  const temporalAddress = testSetting('TEST_TEMPORAL_ADDRESS');
  const stack = await startStack({
    elsewhere: { temporalAddress, taskQueue },
    simulatorSpeed: 0.4,
    lookupTimeoutMs: 100_000,
  });
  t.teardown(() => stack.stop());
  const client = await stack.organization(100);
  // The workflows of next-workflows.ts stand for the previous release here.
  const workflowsPath = fileURLToPath(
    new URL('../../support/next-workflows.ts', import.meta.url),
  );
  const { code } = await bundleWorkflows(workflowsPath);
  const oldBundle = join(folder, 'old.js');
  await writeFile(oldBundle, code);
  await mkdir(join(folder, 'bin'));
  await symlink(testSetting('TEST_TEMPORAL_CLI'), join(folder, 'bin', 'temporal'));

  const { deploymentName, buildId: OLD } = versionOf(taskQueue, code);
  const variables: Record<string, string> = {
    DEPLOYMENT: deploymentName,
    BUNDLE: join(folder, 'new.js'),
    OLD,
    TEMPORAL_ADDRESS: temporalAddress,
    TASK_QUEUE: taskQueue,
    DATABASE_URL: asRole(stack.databaseUrl, 'operator'),
    SECRETS_KEY,
  };
  const path = [join(folder, 'bin'), dirname(process.execPath), process.env.PATH].join(
    delimiter,
  );
  const run = async (commands: string): Promise<string> => {
    const { HOME = folder } = process.env;
    const { stdout } = await promisify(execFile)('bash', ['-euc', commands], {
      cwd: ROOT,
      env: { ...variables, PATH: path, HOME },
    });
    return stdout;
  };
  const type = async (heading: string) => run(await commandsUnder(heading));
  const routing = async () => {
    const named = { namespace: 'default', deploymentName };
    const { workerDeploymentInfo } =
      await stack.client.workflowService.describeWorkerDeployment(named);
    const {
      currentDeploymentVersion,
      rampingDeploymentVersion,
      rampingVersionPercentage,
    } = workerDeploymentInfo?.routingConfig ?? {};
    // The command that ends a ramp leaves the build in place, with 0 percent.
    const percentage = rampingVersionPercentage ?? 0;
    return [
      currentDeploymentVersion?.buildId,
      percentage && rampingDeploymentVersion?.buildId,
      percentage,
    ];
  };
  let from = 0;
  const submit = async () => {
    from += 1000;
    return (await client.bulk({ npis: ordinaryNpis('found_later', 3, from) })).json;
  };
  const ranOn = async ({ batch_id, requests }: Awaited<ReturnType<typeof submit>>) => {
    await client.completed(batch_id);
    const ids = [batch_id, ...requests.map(({ request_id }) => request_id)];
    for (const id of ids) await stack.client.workflow.getHandle(id).result();
    return await tasksOf(stack.client, ids);
  };

  await workers.start(stack, { WORKFLOW_BUNDLE: oldBundle });
  const before = await submit();
  await eventually(async () => stack.simulator.calls().length >= 3 || null);

  const commands = await commandsUnder('1. The gate');
  // This release changes batches and lookups on purpose, so the gate asks whether that was meant.
  const gate = await run(`${commands.trimEnd()} || [ $? = 4 ]`);
  t.regex(gate, /^did you mean to change enrichBatch\?/m);
  const NEW = /^bundle: build ([0-9a-f]{12});/m.exec(gate)?.[1] ?? '';
  t.regex(gate, new RegExp(`^replayed with build ${NEW}; `, 'm'));
  variables.NEW = NEW;

  const CANARY = { TASK_QUEUE: `${taskQueue}-canary` };
  const canary = await workers.start(stack, {
    ...CANARY,
    WORKFLOW_BUNDLE: variables.BUNDLE ?? '',
  });
  const canaryApi = await startApiProcess(stack.databaseUrl, CANARY);
  variables.CANARY = canaryApi.url;
  variables.TEST_KEY = (await stack.sandboxOf(client)).apiKey;
  // The sweep of the other worker may start the batch first.
  const tried = await eventually(async () => {
    const said = await type('2. A sandbox submit');
    return said.includes(NEW) ? said : null;
  });
  t.regex(tried, /"status":"completed","total":2/);
  t.is(tried.match(/"status":"not_found"/g)?.length, 2, tried);
  await canaryApi.stop();
  await canary.stop();

  // Doctor in the next steps needs a running API.
  const api = await startApiProcess(stack.databaseUrl, { TASK_QUEUE: taskQueue });
  t.teardown(() => api.stop());

  await workers.start(stack, {
    WORKFLOW_BUNDLE: variables.BUNDLE ?? '',
    WORKER_ROLLOUT: 'manual',
  });
  const both = await eventually(async () => {
    const said = await type('3. Start the new workers');
    return said.match(/^ +\S+ +(?:workflow|activity)\b/gm)?.length === 5 ? said : null;
  });
  t.true(both.includes(OLD) && both.includes(NEW), both);
  t.deepEqual(await routing(), [OLD, 0, 0], 'a new build gets no work by itself');

  await onceServed(() => type('4. Ramp'));
  t.deepEqual(await routing(), [OLD, NEW, 10]);
  await onceServed(() => type('Back, while it ramps'));
  t.deepEqual(await routing(), [OLD, 0, 0]);

  await onceServed(() => type('5. Make it current'));
  t.deepEqual(await routing(), [NEW, 0, 0]);
  const after = await submit();
  t.deepEqual(await ranOn(before), { failed: [], builds: [OLD] });
  t.deepEqual(await ranOn(after), { failed: [], builds: [NEW] });
  await eventually(async () => {
    const said = await type('6. Wait until the old one is drained');
    return /drain/i.test(said) && !/bat_|req_/.test(said) ? true : null;
  });

  await onceServed(() => type('Back, when it is current'));
  t.deepEqual(await routing(), [OLD, 0, 0]);
  t.deepEqual(await ranOn(await submit()), { failed: [], builds: [OLD] });
});
