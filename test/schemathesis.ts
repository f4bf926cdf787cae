import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { temporaryFolder } from './support/database.ts';
import { runCheck } from './support/long-check.ts';
import { eventually } from './support/organization.ts';
import { startServers } from './support/servers.ts';
import { type Stack, startStack } from './support/stack.ts';
import { TOOLS } from './support/tools.ts';

/**
 * `npm run schemathesis -- [--cases 5000] [--seed N]`: Schemathesis sends cases generated from
 * /openapi.json to the whole service, with all its checks. Fails on any finding, or if fewer cases
 * than requested were sent.
 */
const FOLDER = fileURLToPath(new URL('./schemathesis/', import.meta.url));
/** NPIs for each way a request can end. */
const ENDINGS = ['2000000010', '2000000028', '2000000044', '2000000051', '2000000119'];
/**
 * The least number of cases that Schemathesis sends for each unit of `--max-examples`. It counts
 * examples per operation and kind of test, and ends early if it finds nothing new to send.
 * Measured: 8.6 to 12.3, depending on the seed.
 */
const CASES_PER_EXAMPLE = 7;

const { values } = parseArgs({
  options: { cases: { type: 'string', default: '5000' }, seed: { type: 'string' } },
});
const cases = Number(values.cases);
const seed = Number(values.seed ?? Math.floor(Math.random() * 2 ** 31));

await runCheck(async (started) => {
  console.log(
    `Schemathesis, at least ${cases} cases; again with: npm run schemathesis -- --cases ${cases} --seed ${seed}`,
  );
  const python = await TOOLS.schemathesis();
  const folder = temporaryFolder((remove) => started.defer(remove));
  started.defer(await startServers());
  const stack = await startStack({ rateWindowMs: 1000, lookupTimeoutMs: 5000 });
  started.defer(stack.stop);
  const peers = [await peer(stack, 'first'), await peer(stack, 'second')];
  const authFile = join(folder, 'auth.json');
  await writeFile(authFile, JSON.stringify({ auth: peers.map(({ auth }) => auth) }));
  const decidedFile = join(folder, 'decided.json');
  await writeFile(decidedFile, JSON.stringify(peers.flatMap(({ decided }) => decided)));
  // With a worker, the result of a case would depend on its timing.
  await stack.stopWorker();

  // A file, because Schemathesis excludes the operation of the URL that it loads the document from.
  const document = join(folder, 'openapi.json');
  await writeFile(document, await (await fetch(`${stack.baseUrl}/openapi.json`)).text());
  const report = join(folder, 'report.json');
  const child = spawn(
    python,
    [
      ...['-m', 'schemathesis.cli', '--config-file', join(FOLDER, 'schemathesis.toml')],
      ...['run', document, '--url', stack.baseUrl, '--seed', String(seed)],
      ...[
        '--max-examples',
        String(Math.ceil(cases / CASES_PER_EXAMPLE)),
        '--report-json-path',
        report,
      ],
    ],
    {
      cwd: folder,
      env: {
        ...process.env,
        ...{
          HOOKS: join(FOLDER, 'hooks.py'),
          AUTH_FILE: authFile,
          DECIDED_FILE: decidedFile,
        },
      },
      stdio: 'inherit',
    },
  );
  const [code] = await once(child, 'close');
  const { test_cases } = JSON.parse(await readFile(report, 'utf8')) as {
    test_cases: { generated: number };
  };
  console.log(
    `${test_cases.generated} cases, seed ${seed}: ${code === 0 ? 'no finding' : 'findings'}`,
  );
  if (test_cases.generated < cases)
    console.error(`fewer than the ${cases} cases asked for`);
  if (code !== 0 || test_cases.generated < cases) process.exitCode = 1;
});

/**
 * Makes an organization with results of every kind. `auth` is its entry in Schemathesis' Web
 * Fuzzing Commons file, and `decided` contains the ids of deliveries that can be resent.
 */
async function peer(stack: Stack, name: string) {
  const organization = await stack.organization(1_000_000_000);
  const { json } = await organization.bulk({
    npis: ENDINGS,
    webhook: { url: stack.receiver.url },
  });
  const path = `/api/v1/batch/${json.batch_id}/deliveries`;
  const decided = await eventually(async () => {
    const { deliveries } = (
      await organization.get<{ deliveries: { id: string; status: string }[] }>(path)
    ).json;
    return deliveries.every(({ status }) => status === 'delivered') ? deliveries : null;
  });
  return {
    auth: {
      name,
      fixedHeaders: [{ name: 'Authorization', value: `Bearer ${organization.apiKey}` }],
    },
    decided: decided.map(({ id }) => ({ batch_id: json.batch_id, delivery_id: id })),
  };
}
