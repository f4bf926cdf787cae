import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { Ajv } from 'ajv';
import { beginImport, endImport } from '../db/lookups/imports.ts';
import { noteDoctor } from '../db/operations/routines.ts';
import { run } from '../deploy/local/processes.ts';
import { freePort, LOOPBACK } from '../deploy/ports.ts';
import { temporaryFolder, testSetting } from './support/database.ts';
import { runCheck } from './support/long-check.ts';
import { createCaller, HANG_MS } from './support/organization.ts';
import { startApiProcess, workerProcesses } from './support/programs.ts';
import { check, startAlertmanager, startPrometheus } from './support/prometheus.ts';
import { startServers } from './support/servers.ts';
import { type Stack, startStack } from './support/stack.ts';
import { TOOLS } from './support/tools.ts';

/**
 * `npm run monitoring -- [--seconds 40]`: promtool checks deploy/prometheus,
 * and Grafana's types check the dashboards of deploy/grafana. Then the service works for a while
 * under a real Prometheus: every query of every panel must find numbers, every alert must use
 * existing metrics, and Alertmanager must get an alert. The run ends at the first problem.
 */
const path = (relative: string) => fileURLToPath(new URL(relative, import.meta.url));
const PROMETHEUS = path('../deploy/prometheus/');
const DASHBOARDS = path('../deploy/grafana/dashboards/');
/** A file of Grafana's own sources. `raw` contains the types of the files that Grafana reads. */
const TYPES = '@grafana/schema/dist/types/raw/dashboard/x/types.gen.d.ts';
/** A query of a variable, which lists the values of a label. */
const LABEL_VALUES = /^label_values\((\w+), (\w+)\)$/;
/** Exists only after the first failed workflow task. */
const SELDOM = new Set(['temporal_workflow_task_execution_failed_total']);

const RUNBOOKS = 'https://runbooks.test';

/** NPIs for every way a request can end soon, and one whose vendor never responds. */
const NPIS = ['010', '028', '044', '051', '119', '127', '135', '168', '218'].map(
  (end) => `2000000${end}`,
);
const NEVER = '2000000101';

const { values } = parseArgs({
  options: { seconds: { type: 'string', default: '40' } },
});

await runCheck(main);

async function main(started: AsyncDisposableStack): Promise<void> {
  const [promtool, prometheus] = [await TOOLS.promtool(), await TOOLS.prometheus()];
  await check(promtool, 'check', 'config', join(PROMETHEUS, 'prometheus.yaml'));
  await check(promtool, 'test', 'rules', join(PROMETHEUS, 'alerts.test.yaml'));
  const dashboards = readdirSync(DASHBOARDS).map(
    (file) => [file, readDashboard(file)] as const,
  );
  await holdAgainstTypes(dashboards);
  console.log('promtool and the types of Grafana accept the files');

  const folder = temporaryFolder((remove) => started.defer(remove));
  started.defer(await startServers());
  const temporal = {
    temporalAddress: testSetting('TEST_TEMPORAL_ADDRESS'),
    taskQueue: `enrichment-${randomUUID()}`,
  };
  const stack = await startStack({ allSources: true, elsewhere: temporal });
  started.defer(() => stack.stop());
  const [apiPort, workerPort] = [await freePort(), await freePort()];
  const metricsAt = (port: number) => ({
    METRICS_HOST: LOOPBACK,
    METRICS_PORT: String(port),
  });
  const WEBHOOK_OPEN_CIDRS = '127.0.0.0/8';
  const ofApi = {
    TASK_QUEUE: temporal.taskQueue,
    WEBHOOK_OPEN_CIDRS,
    ...metricsAt(apiPort),
  };
  const api = await startApiProcess(stack.databaseUrl, ofApi);
  started.defer(() => api.stop());
  const workers = workerProcesses();
  started.defer(() => workers.stop());
  const SOURCES_FILE = await withBudget(stack, join(folder, 'sources.json'));
  await workers.start(stack, { SOURCES_FILE, ...metricsAt(workerPort) });
  const since = new Date();
  const alertmanager = await startAlertmanager(
    await TOOLS.alertmanager(),
    folder,
    join(PROMETHEUS, 'alertmanager.yaml'),
  );
  started.defer(alertmanager.stop);
  const targets = {
    api: [`${LOOPBACK}:${apiPort}`],
    worker: [`${LOOPBACK}:${workerPort}`],
  };
  const server = await startPrometheus(prometheus, folder, {
    targets,
    rules: join(PROMETHEUS, 'alerts.yaml'),
    alertmanager: alertmanager.address,
    runbooks: RUNBOOKS,
  });
  started.defer(() => server.stop());
  await haveFindings(stack);

  let round = 0;
  const work = async () => {
    await Promise.all([customers(stack, api.url, round), sleep(1000)]);
    round += 1;
  };
  const end = since.getTime() + Number(values.seconds) * 1000;
  while (Date.now() < end) await work();
  let problems = await findProblems({ server, alertmanager, dashboards, since });
  // A busy machine needs longer until everything has numbers.
  const deadline = end + HANG_MS;
  while (problems.length > 0 && Date.now() < deadline) {
    await work();
    problems = await findProblems({ server, alertmanager, dashboards, since });
  }
  if (problems.length > 0) throw new Error(problems.join('\n'));
  console.log(`${dashboards.length} dashboards have numbers in every panel`);
}

/** The members of a dashboard that this check reads. */
interface Dashboard {
  readonly title: string;
  readonly templating: { readonly list: readonly { readonly query: string }[] };
  readonly panels: readonly {
    readonly title: string;
    readonly targets: readonly { readonly expr: string }[];
  }[];
}

/** The servers and the dashboards that observe the service, and the start of the check. */
interface Observed {
  readonly server: Awaited<ReturnType<typeof startPrometheus>>;
  readonly alertmanager: Awaited<ReturnType<typeof startAlertmanager>>;
  readonly dashboards: readonly (readonly [file: string, dashboard: Dashboard])[];
  readonly since: Date;
}

/** Returns what has no numbers yet, or is missing, one sentence for each. */
async function findProblems(observed: Observed): Promise<string[]> {
  const { server, alertmanager, dashboards, since } = observed;
  const problems: string[] = [];
  for (const [file, { panels, templating }] of dashboards) {
    for (const { query } of templating.list) {
      const [, metric = '', label] = LABEL_VALUES.exec(query) ?? [];
      if (label === undefined) continue;
      const choices = await server.ask<string[]>(`label/${label}/values`, {
        'match[]': metric,
      });
      if (choices.length === 0) problems.push(`${file}: nothing to choose: ${query}`);
    }
    for (const { title, targets } of panels)
      for (const { expr } of targets) {
        const series = await server.range(queryOf(expr), since, 1);
        const hasNumbers = series.some(({ values }) =>
          values.some(([, value]) => Number.isFinite(+value)),
        );
        if (!hasNumbers) problems.push(`${file}: "${title}" shows nothing: ${expr}`);
      }
  }
  const known = new Set(await server.ask<string[]>('label/__name__/values'));
  const alerts = readFileSync(join(PROMETHEUS, 'alerts.yaml'), 'utf8');
  for (const [name] of alerts.matchAll(/\b(?:npe|temporal|nodejs)_\w+/g))
    if (!known.has(name) && !SELDOM.has(name))
      problems.push(`alerts.yaml: nobody tells ${name}`);
  const received = await alertmanager.alerts();
  const alert = received.find(({ labels }) => labels.alertname === 'DoctorFindings');
  if (alert?.annotations.runbook_url !== `${RUNBOOKS}/routines.md`)
    problems.push('Alertmanager did not receive DoctorFindings with its runbook');
  return [...new Set(problems)];
}

/** Replaces the variables of Grafana. The dashboard's own variables have the value "All". */
function queryOf(expr: string): string {
  return expr.replaceAll('$__rate_interval', '15s').replace(/\$\w+/g, '.*');
}

function readDashboard(file: string): Dashboard {
  return JSON.parse(readFileSync(join(DASHBOARDS, file), 'utf8')) as Dashboard;
}

/** @throws {Error} with the parts of a dashboard that Grafana's types do not allow */
async function holdAgainstTypes(
  dashboards: readonly (readonly [string, Dashboard])[],
): Promise<void> {
  const packages = await TOOLS.grafanaPackages();
  const generate = join(packages, '.bin', 'ts-json-schema-generator');
  const { code, output } = await run(
    generate,
    ['--no-type-check', '--type', 'Dashboard', '--path', join(packages, TYPES)],
    {},
  );
  if (code !== 0) throw new Error(`the types of Grafana could not be read: ${output}`);
  const isDashboard = new Ajv({ strict: false, allErrors: true }).compile(
    JSON.parse(output) as object,
  );
  for (const [file, dashboard] of dashboards)
    if (!isDashboard(dashboard))
      throw new Error(
        `${file}: ${JSON.stringify(isDashboard.errors?.slice(0, 5), null, 2)}`,
      );
}

/** Records a run of the doctor, whose findings are an alert at once, and an import. */
async function haveFindings(stack: Stack): Promise<void> {
  await noteDoctor(stack.db, 1);
  const file = { name: 'nppes.zip', fingerprint: 'monitoring' };
  const by = { actor: 'monitoring', reason: 'test' };
  const { id } = await beginImport(stack.db, by, 'nppes', file);
  await endImport(stack.db, id, 'done', {});
}

/** Writes the stack's sources file with a budget, whose panel is otherwise empty. */
async function withBudget(stack: Stack, file: string): Promise<string> {
  const given = JSON.parse(
    readFileSync(stack.workerEnvironment.SOURCES_FILE, 'utf8'),
  ) as {
    vendors: { rocketreach: object };
  };
  const rocketreach = { ...given.vendors.rocketreach, daily_credits: 5000 };
  await writeFile(
    file,
    JSON.stringify({ ...given, vendors: { ...given.vendors, rocketreach } }),
  );
  return file;
}

/** Sends typical requests of a live customer and its sandbox, including wrong ones. */
async function customers(stack: Stack, url: string, round: number): Promise<void> {
  const live = await stack.organization(round % 10 === 0 ? 12 : 100);
  const customer = createCaller(url, live.apiKey);
  const sandbox = createCaller(url, (await stack.sandboxOf(live)).apiKey);
  const once = { 'idempotency-key': `round-${round}` };
  const webhook = { url: `${stack.receiver.url}/${round % 5 ? 'round' : 'status/500'}` };
  const body = { npi: NPIS[round % NPIS.length], webhook };
  const { status, json, text } = await customer.single(body, once);
  if (status !== 202) throw new Error(`a submit got ${status}: ${text}`);
  await customer.single(body, once);
  await customer.bulk({
    npis: NPIS,
    enrichment_email_type: round % 2 ? 'professional' : 'any',
  });
  if (round % 10 === 0) await customer.bulk({ npis: [NEVER] });
  await sandbox.single({ npi: '2000000234' });
  await customer.credits();
  await customer.batch(json.batch_id);
  await customer.get('/api/v1/nothing');
}
