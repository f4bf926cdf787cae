import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { migrate } from '../../db/migrate.ts';
import { ConfigError, loadLocalConfig } from '../config/config.ts';
import { demonstrate } from './demo.ts';
import { LocalProblem } from './problem.ts';
import { type Stack, startStack } from './stack.ts';
import { openTenant } from './tenant.ts';

// `npm start`: the whole service on this machine, then its main job done once through its own API.

const HELP = `npm start [-- OPTIONS]

Starts PostgreSQL, Temporal with its UI, simulated vendors, a webhook receiver, the worker and the API, all on
loopback; imports a sample of NPPES; submits a demonstration batch; stays up until Ctrl-C.

  --no-demo        do not submit the demonstration batch
  --port PORT      the API's port (default 8080)
  --dir FOLDER     where data, logs and stack.json are kept (default .local)
  --help           this text

DATABASE_URL and TEMPORAL_ADDRESS, where set, are used instead of own servers.
`;

const { values } = options();

function options() {
  try {
    return parse();
  } catch (error) {
    console.error(`${error instanceof Error ? error.message : error}\n\n${HELP}`);
    process.exit(2);
  }
}

function parse() {
  return parseArgs({
    options: {
      'no-demo': { type: 'boolean', default: false },
      port: { type: 'string', default: '8080' },
      dir: { type: 'string', default: '.local' },
      help: { type: 'boolean', default: false },
    },
  });
}

if (values.help) {
  console.log(HELP);
} else {
  process.exitCode = await run();
  // Everything is stopped; a handle that a library left open must not keep the program.
  process.exit();
}

async function run(): Promise<number> {
  const interruption = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      if (!interruption.signal.aborted) console.log('\nstopping …');
      interruption.abort();
    });
  }
  const interrupted = new Promise<void>((resolve) =>
    interruption.signal.addEventListener('abort', () => resolve()),
  );
  let stack: Stack | null = null;
  try {
    const port = Number(values.port);
    if (!/^[0-9]{1,5}$/.test(values.port) || port > 65_535) {
      throw new LocalProblem('bad_port', `--port must be a number from 0 to 65535, not "${values.port}".`);
    }
    await mkdir(values.dir, { recursive: true });
    stack = await startStack({
      dir: values.dir,
      apiPort: port,
      given: loadLocalConfig(),
      say: (line) => console.log(line),
      signal: interruption.signal,
      prepare: async (databaseUrl) => {
        await migrate(databaseUrl);
        return await openTenant(databaseUrl, join(values.dir, 'stack.json'));
      },
    });
    await writeFile(join(values.dir, 'stack.json'), `${JSON.stringify(stack.facts, null, 2)}\n`, {
      mode: 0o600,
    });
    let batchId: string | null = null;
    if (!values['no-demo']) {
      const demonstration = demonstrate(stack.facts, (line) => console.log(line));
      batchId = (await Promise.race([demonstration, stack.failed, interrupted])) ?? null;
    }
    if (!interruption.signal.aborted) console.log(whatNext(stack, values.dir, batchId));
    await Promise.race([interrupted, stack.failed]);
    return 0;
  } catch (error) {
    if (interruption.signal.aborted) return 0;
    if (error instanceof LocalProblem || error instanceof ConfigError) console.error(`\n${error.message}`);
    else console.error(error);
    return 1;
  } finally {
    await stack?.stop();
  }
}

function whatNext({ facts }: Stack, dir: string, batchId: string | null): string {
  const auth = `-H "Authorization: Bearer ${facts.api_key}"`;
  const json = `-H "Content-Type: application/json"`;
  return `
The service is up.  A look-up that finds nothing in time fails after 1 minute here (15 in production).

  API            ${facts.base_url}
  API key        ${facts.api_key}
  Temporal UI    ${facts.temporal_ui ?? `(of the cluster at ${facts.temporal_address})`}
  Webhooks       ${facts.receiver_url}  (what arrived; self-made certificate, so curl -k)
  All of it      ${join(dir, 'stack.json')}   logs: ${join(dir, 'logs')}

Try:

  curl -s ${auth} ${facts.base_url}/api/v1/credits
  curl -s ${auth} ${json} ${facts.base_url}/api/v1/email -d '{"npi":"2000000036","enrichment_email_type":"personal"}'
  curl -s ${auth} ${json} ${facts.base_url}/api/v1/email -d '{"npi":"2000000101"}'   # the vendor hangs: failed, refunded
${batchId ? `  curl -s ${auth} ${facts.base_url}/api/v1/batch/${batchId}\n` : ''}  curl -sk ${facts.receiver_url}
  DATABASE_URL='${facts.database_url}' npm run operator -- explain 2000000226   # who was asked, and what came of it
  DATABASE_URL='${facts.database_url}' npm run operator -- vendors

Ctrl-C stops everything this started.`;
}
